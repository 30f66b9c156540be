"""Owns the check of a user's GBNF before libllama sees it.

libllama's parser overflows the stack, never ends or runs out of memory on some grammars; its own checks come too late.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from corral.errors import InvalidRequest

MAX_CHARS = 256_000
MAX_NESTING = 256  # each "(" is two frames of libllama's parser
MAX_CHAIN = 4096  # rules that begin with a rule that begins with a rule ...: a frame each
MAX_LEFTMOST = 5_000  # ways to begin a rule; libllama walks all of them at once
MAX_EMPTY = 64  # ways through parts in a row that may be empty: its third power is the cost of a token
MAX_ELEMENTS = 1_000_000  # after repetitions are written out
MAX_MARKS = 16  # "a?*+": each is a rule around the one before
MAX_REPEAT = 2000  # libllama's own limit

_ESCAPE = r"""(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[trn"\\\[\]-])"""
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<define>[A-Za-z0-9-]+[ \t]*::=)
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<literal>"(?:\\ESCAPE|[^"\\])*")
    |(?P<chars>\[(?:\\ESCAPE|[^\]\\])*\])
    |(?P<any>\.)
    |(?P<token>!?<(?:\[\d+\]|[^>]*)>)
    |(?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[()|])""".replace("ESCAPE", _ESCAPE),
    re.VERBOSE | re.DOTALL,
)
_TERMINAL = -1
_Alternate = list[int]


def check_grammar(text: str) -> None:
    """Raises InvalidRequest if ``text`` is not a grammar with a rule ``root`` that libllama can take."""
    if len(text) > MAX_CHARS:
        raise _bad(f"it has {len(text)} characters; at most {MAX_CHARS} are possible")
    if "\0" in text:
        raise _bad("it has a NUL character")
    graph = _Reader(text).read()
    _check_names(graph)
    nullable = _nullable(graph.rules)
    _check_empty_runs(graph.rules, nullable, _count_ways(graph.rules, nullable))


def _bad(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Failed to initialize samplers: failed to parse grammar: {reason}")


@dataclass(slots=True)
class _Graph:
    """Rules as lists of alternates of rule numbers (or _TERMINAL); groups and repetitions are rules without a name."""

    rules: list[list[_Alternate]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)

    def new_rule(self) -> int:
        self.rules.append([[]])
        return len(self.rules) - 1

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = self.new_rule()
        return self.numbers[name]


class _Reader:
    """One pass over the text; nesting is kept in a list, not on Python's stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._graph = _Graph()
        self._open: list[int] = []
        self._n_elements = 0
        self._last_size = 0  # elements of the last item; 0: there is nothing to repeat
        self._n_marks = 0  # repetitions of the last item

    def read(self) -> _Graph:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if not match:
                raise _bad(f"unexpected {self._text[at : at + 20]!r} at character {at}")
            getattr(self, f"_{match.lastgroup}")(match[0])
            at = match.end()
        self._close_rule()
        return self._graph

    def _space(self, token: str) -> None:
        pass

    def _define(self, token: str) -> None:
        self._close_rule()
        name = token[:-3].strip()
        number = self._graph.number(name)
        self._graph.rules[number] = [[]]
        self._graph.defined.add(name)
        self._open = [number]
        self._last_size = 0

    def _close_rule(self) -> None:
        if len(self._open) > 1:
            raise _bad("a '(' is not closed")

    def _name(self, token: str) -> None:
        self._add(self._graph.number(token), 1)

    def _literal(self, token: str) -> None:
        self._add(_TERMINAL, len(token) - 2)

    _chars = _literal

    def _any(self, token: str) -> None:
        self._add(_TERMINAL, 1)

    _token = _any

    def _add(self, symbol: int, size: int) -> None:
        if not self._open:
            raise _bad("text before the first rule")
        self._last_size = size
        self._n_marks = 0
        self._n_elements += size
        if size:
            self._graph.rules[self._open[-1]][-1].append(symbol)

    def _mark(self, token: str) -> None:
        if not self._open:
            raise _bad("text before the first rule")
        if token == "|":
            self._graph.rules[self._open[-1]].append([])
            self._last_size = 0
        elif token == "(":
            if len(self._open) > MAX_NESTING:
                raise _bad(f"more than {MAX_NESTING} nested '('")
            self._open.append(self._graph.new_rule())
            self._last_size = 0
        elif len(self._open) < 2:
            raise _bad("a ')' without '('")
        else:
            self._add(self._open.pop(), 1)

    def _repeat(self, token: str) -> None:
        if not self._last_size:
            raise _bad(f"nothing to repeat before {token!r}")
        self._n_marks += 1
        if self._n_marks > MAX_MARKS:
            raise _bad(f"more than {MAX_MARKS} repetitions of one item")
        low, high = _bounds(token)
        n_copies = max(low, high or 0, 1)
        self._n_elements += self._last_size * n_copies
        if self._n_elements > MAX_ELEMENTS:
            raise _bad(f"more than {MAX_ELEMENTS} elements after repetition")
        alternate = self._graph.rules[self._open[-1]][-1]
        repeated = self._graph.new_rule()
        self._graph.rules[repeated] = [[alternate[-1]] * n_copies] + ([[]] if low == 0 else [])
        alternate[-1] = repeated


def _bounds(token: str) -> tuple[int, int | None]:
    """(low, high) of a repetition; high None means no limit."""
    if token in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token]
    first, comma, last = token[1:-1].partition(",")
    if max(len(first.strip()), len(last.strip())) > 9 or int(first) > MAX_REPEAT:
        raise _bad(f"{token} repeats more than {MAX_REPEAT} times")
    low = int(first)
    high = int(last) if last.strip() else (None if comma else low)
    if high is not None and high < low:
        raise _bad(f"{token} has a maximum below its minimum")
    # libllama reads a maximum over its limit as no limit
    return low, None if high is not None and high > MAX_REPEAT else high


def _check_names(graph: _Graph) -> None:
    if "root" not in graph.defined:
        raise _bad("there is no rule 'root'")
    if missing := next((name for name in graph.numbers if name not in graph.defined), None):
        raise _bad(f"rule {missing!r} is not defined")


def _nullable(rules: list[list[_Alternate]]) -> set[int]:
    """The rules that can match nothing."""
    missing: dict[tuple[int, int], int] = {}
    uses: dict[int, list[tuple[int, int]]] = {}
    todo: list[int] = []
    for number, alternates in enumerate(rules):
        for index, alternate in enumerate(alternates):
            missing[number, index] = len(alternate)
            if not alternate:
                todo.append(number)
            for symbol in alternate:
                uses.setdefault(symbol, []).append((number, index))
    found: set[int] = set()
    while todo:
        number = todo.pop()
        if number in found:
            continue
        found.add(number)
        for use in uses.get(number, ()):
            missing[use] -= 1
            if not missing[use]:
                todo.append(use[0])
    return found


def _leftmost(alternates: list[_Alternate], nullable: set[int]) -> list[int]:
    """The rules with which a rule may begin, as often as libllama visits them."""
    first = []
    for alternate in alternates:
        for symbol in alternate:
            if symbol != _TERMINAL:
                first.append(symbol)
            if symbol not in nullable:
                break
    return first


def _count_ways(rules: list[list[_Alternate]], nullable: set[int]) -> list[int]:
    """In how many ways each rule can begin. No rule may begin with itself; the ways must be few and short."""
    edges = [_leftmost(alternates, nullable) for alternates in rules]
    ways = [0] * len(rules)
    depth = [0] * len(rules)
    in_progress = [False] * len(rules)
    for start in range(len(rules)):
        stack = [start]
        while stack:
            rule = stack[-1]
            if ways[rule]:
                stack.pop()
            elif not in_progress[rule]:
                in_progress[rule] = True
                stack += (_entered(edge, in_progress) for edge in set(edges[rule]) if not ways[edge])
            else:
                stack.pop()
                # copies of a part that can be empty are one chain in libllama
                depth[rule] = len(edges[rule]) + max((depth[edge] for edge in edges[rule]), default=0)
                ways[rule] = 1 + sum(ways[edge] for edge in edges[rule])
                in_progress[rule] = False
                if ways[rule] > MAX_LEFTMOST or depth[rule] > MAX_CHAIN:
                    raise _bad("too many ways to begin a rule")
    return ways


def _check_empty_runs(rules: list[list[_Alternate]], nullable: set[int], ways: list[int]) -> None:
    for alternates in rules:
        for alternate in alternates:
            run = 0
            for symbol in alternate:
                run = run + ways[symbol] if symbol in nullable else 0
                if run > MAX_EMPTY:
                    raise _bad("too many parts in a row that may be empty")


def _entered(rule: int, in_progress: list[bool]) -> int:
    if in_progress[rule]:
        raise _bad("left recursion: a rule begins with itself")
    return rule
