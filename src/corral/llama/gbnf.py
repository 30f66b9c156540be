"""Owns the reading of GBNF: its text as rules, without libllama. Raises for what libllama could not read either."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from corral.errors import InvalidRequest

MAX_NESTING = 256  # each "(" is two frames of libllama's parser
MAX_ELEMENTS = 1_000_000  # after repetitions are written out
MAX_MARKS = 16  # "a?*+": each is a rule around the one before
MAX_REPEAT = 2000  # libllama's own limit, also for the rules that nested repetitions come to
MAX_TOKEN = 2**32 - 1
MAX_CODE_POINT = 0x10FFFF

_ESCAPE = r"""(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[trn"\\\[\]-])"""
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<define>[A-Za-z0-9-]+[ \t]*::=)
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<literal>"(?:\\ESCAPE|[^"\\])*")
    |(?P<chars>\[(?:\\ESCAPE|[^\]\\])*\])
    |(?P<any>\.)
    |(?P<token>!?<(?:\[[0-9]+\]|(?:[^>\[][^>]*)?)>)
    |(?P<repeat>[*+?]|\{[ \t]*[0-9]+[ \t]*(?:,[ \t]*[0-9]*[ \t]*)?\})
    |(?P<mark>[()|])""".replace("ESCAPE", _ESCAPE),
    re.VERBOSE | re.DOTALL,
)
_UNIT = re.compile(r"\\ESCAPE|.".replace("ESCAPE", _ESCAPE), re.DOTALL)
_CONTROLS = {"t": "\t", "r": "\r", "n": "\n"}

Alternate = list[int]
CharClass = tuple[tuple[int, int], ...]
"""Ranges of code points, both ends included, ascending and apart; empty for a token, which is no character."""
ANY: CharClass = ((0, MAX_CODE_POINT),)


def bad_grammar(reason: str) -> InvalidRequest:
    """The error of a grammar that is refused."""
    return InvalidRequest(f"Failed to initialize samplers: failed to parse grammar: {reason}")


@dataclass(frozen=True, slots=True)
class Repeat:
    """``symbol`` at least ``low`` times and at most ``high`` (None: no limit)."""

    symbol: int
    low: int
    high: int | None


@dataclass(slots=True)
class Graph:
    """Rules as lists of alternates of symbols; groups and repetitions are rules without a name.

    A symbol from 0 up is a rule; -1 - i is ``terminals[i]``, some characters in a row. A rule in ``repeats`` stands for
    that repetition; its alternates say only how it may begin.
    """

    rules: list[list[Alternate]] = field(default_factory=list)
    terminals: list[tuple[CharClass, ...]] = field(default_factory=list)
    repeats: dict[int, Repeat] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    """The texts of ``<token>``, each of which must be one token of the vocabulary."""

    def new_rule(self) -> int:
        self.rules.append([[]])
        return len(self.rules) - 1

    def new_terminal(self, chars: tuple[CharClass, ...]) -> int:
        self.terminals.append(chars)
        return -len(self.terminals)

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self.new_rule()
        return self.numbers[name]


def read(text: str) -> Graph:
    """The rules of a grammar. Raises InvalidRequest."""
    return _Reader(text).read()


class _Reader:
    """One pass over the text; nesting is kept in a list, not on Python's stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._graph = Graph()
        self._open: list[int] = []
        self._n_elements = 0
        self._last_size = 0  # elements of the last item; 0: there is nothing to repeat
        self._n_marks = 0  # repetitions of the last item
        self._n_made = 0  # rules that libllama makes besides the named ones
        self._n_before: list[int] = []  # for each open group all rules before it
        self._n_last = 1  # rules that the last item came to
        self._may_go_on = False  # only space since the rule's "::=" or "|", so that its line may end
        self._has_ended = False

    def read(self) -> Graph:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if not match:
                raise bad_grammar(f"unexpected {self._text[at : at + 20]!r} at character {at}")
            if match.lastgroup not in ("space", "define"):
                self._check_line(match)
            getattr(self, f"_{match.lastgroup}")(match[0])
            at = match.end()
        self._close_rule()
        return self._graph

    def _check_line(self, match: re.Match[str]) -> None:
        if self._has_ended:
            raise bad_grammar(
                f"unexpected {match[0][:20]!r} at character {match.start()}: outside of '(' a rule ends with its line"
            )
        self._may_go_on = False

    def _space(self, token: str) -> None:
        if len(self._open) == 1 and not self._may_go_on and not token.startswith("#"):
            self._has_ended |= "\n" in token or "\r" in token

    def _define(self, token: str) -> None:
        self._close_rule()
        if self._open and not self._has_ended:
            raise bad_grammar(f"unexpected {token!r} on the line of another rule")
        self._has_ended, self._may_go_on = False, True
        name = token[:-3].strip()
        number = self._graph.number(name)
        self._graph.rules[number] = [[]]
        self._graph.defined.add(name)
        self._open = [number]
        self._last_size = 0

    def _close_rule(self) -> None:
        if len(self._open) > 1:
            raise bad_grammar("a '(' is not closed")

    def _name(self, token: str) -> None:
        self._add(self._graph.number(token), 1)

    def _literal(self, token: str) -> None:
        self._add_chars(tuple(((code, code),) for code in map(_code, _UNIT.findall(token[1:-1]))))

    def _chars(self, token: str) -> None:
        ranges = _ranges(token)
        self._add_chars((ranges,) if ranges is not None else ())

    def _any(self, token: str) -> None:
        self._add_chars((ANY,))

    def _token(self, token: str) -> None:
        text = token.lstrip("!")
        if text.startswith("<["):
            if len(text) > 14 or int(text[2:-2]) > MAX_TOKEN:
                raise bad_grammar(f"{token[:20]} is not the id of a token")
        else:
            self._graph.tokens.add(text)
        self._add_chars(((),))

    def _add_chars(self, chars: tuple[CharClass, ...]) -> None:
        self._add(self._graph.new_terminal(chars), len(chars))

    def _add(self, symbol: int, size: int) -> None:
        if not self._open:
            raise bad_grammar("text before the first rule")
        self._last_size = size
        self._n_marks = 0
        self._n_last = 1
        self._n_elements += size
        if size:
            self._graph.rules[self._open[-1]][-1].append(symbol)

    def _mark(self, token: str) -> None:
        if not self._open:
            raise bad_grammar("text before the first rule")
        if token == "|":
            self._graph.rules[self._open[-1]].append([])
            self._last_size = 0
            self._may_go_on = True
        elif token == "(":
            if len(self._open) > MAX_NESTING:
                raise bad_grammar(f"more than {MAX_NESTING} nested '('")
            self._n_before.append(self._n_made + len(self._graph.numbers))
            self._n_made += 1
            self._open.append(self._graph.new_rule())
            self._last_size = 0
        elif len(self._open) < 2:
            raise bad_grammar("a ')' without '('")
        else:
            self._add(self._open.pop(), 1)
            self._n_last = self._n_made + len(self._graph.numbers) - self._n_before.pop()

    def _repeat(self, token: str) -> None:
        if not self._last_size:
            raise bad_grammar(f"nothing to repeat before {token!r}")
        self._n_marks += 1
        if self._n_marks > MAX_MARKS:
            raise bad_grammar(f"more than {MAX_MARKS} repetitions of one item")
        low, high = _bounds(token)
        n_copies = max(low, high or 0, 1)
        self._n_last *= n_copies
        if self._n_last > MAX_REPEAT:
            raise bad_grammar(f"nested repetitions come to {self._n_last} rules; at most {MAX_REPEAT} are possible")
        self._n_made += 1 if high is None else high - low
        if high == 0:
            self._last_size = 0
        self._n_elements += self._last_size * n_copies
        if self._n_elements > MAX_ELEMENTS:
            raise bad_grammar(f"more than {MAX_ELEMENTS} elements after repetition")
        graph, alternate = self._graph, self._graph.rules[self._open[-1]][-1]
        repeated = graph.new_rule()
        graph.rules[repeated] = [[alternate[-1]] * n_copies] + ([[]] if low == 0 else [])
        graph.repeats[repeated] = Repeat(alternate[-1], low, high)
        alternate[-1] = repeated


def _code(unit: str) -> int:
    """The code point of a character or an escape."""
    if unit[0] != "\\" or len(unit) == 1:
        return ord(unit)
    return int(unit[2:], 16) if unit[1] in "xuU" else ord(_CONTROLS.get(unit[1], unit[1]))


def _ranges(token: str) -> CharClass | None:
    """What ``[...]`` matches; None if nothing is between the brackets, which libllama reads as no element at all."""
    negative = token.startswith("[^")
    units = _UNIT.findall(token[2 if negative else 1 : -1])
    if not units:
        return None
    ranges, at = [], 0
    while at < len(units):
        is_range = at + 2 < len(units) and units[at + 1] == "-"
        ranges.append((_code(units[at]), _code(units[at + 2] if is_range else units[at])))
        at += 3 if is_range else 1
    merged = _merged(ranges)
    return _complement(merged) if negative else merged


def _merged(ranges: list[tuple[int, int]]) -> CharClass:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: CharClass) -> CharClass:
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), MAX_CODE_POINT]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def _bounds(token: str) -> tuple[int, int | None]:
    """(low, high) of a repetition; high None means no limit."""
    if token in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token]
    first, comma, last = token[1:-1].partition(",")
    if max(len(first.strip()), len(last.strip())) > 9 or int(first) > MAX_REPEAT:
        raise bad_grammar(f"{token} repeats more than {MAX_REPEAT} times")
    low = int(first)
    high = int(last) if last.strip() else (None if comma else low)
    if high is not None and high < low:
        raise bad_grammar(f"{token} has a maximum below its minimum")
    # libllama reads a maximum over its limit as no limit
    return low, None if high is not None and high > MAX_REPEAT else high
