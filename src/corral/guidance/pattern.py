"""Owns the language of trigger patterns: ECMAScript's regular expressions over bytes, as std::regex reads them.

A pattern becomes a program for ``Search``, which takes time in proportion to the text whatever the pattern is.
What cannot be searched for so, look-ahead and references back, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto

from corral.errors import InvalidRequest

MAX_STEPS = 2000
"""Of a program: a byte of text may have to be compared with each."""
MAX_DEPTH = 100


class Op(IntEnum):
    """BYTE: one of ``table``. SPLIT: go on at ``a``, else at ``b``, relative. SAVE: the place in register ``a``."""

    BYTE = auto()
    SPLIT = auto()
    SAVE = auto()
    BEGIN = auto()
    END = auto()
    BORDER = auto()
    NO_BORDER = auto()
    MATCH = auto()


@dataclass(frozen=True, slots=True)
class Step:
    op: Op
    a: int = 0
    b: int = 0
    table: bytes = b""


@dataclass(frozen=True, slots=True)
class Program:
    """``steps`` end with MATCH. Registers 2n and 2n + 1 are where group n begins and ends; group 0 is the match."""

    steps: tuple[Step, ...]
    n_groups: int


def compile_pattern(pattern: str) -> Program:
    """Raises InvalidRequest with the reason and the place, in bytes."""
    parser = _Parser(pattern.encode())
    steps = [Step(Op.SAVE, 0), *parser.whole(), Step(Op.SAVE, 1), Step(Op.MATCH)]
    return Program(tuple(steps), parser.n_groups + 1)


def table_of(data: bytes) -> bytes:
    """256 flags: which bytes are in ``data``."""
    return bytes(byte in data for byte in range(256))


def _without(table: bytes) -> bytes:
    return bytes(not flag for flag in table)


_DIGITS, _LOWER, _UPPER = b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PUNCT = bytes(byte for byte in range(33, 127) if not chr(byte).isalnum())
WORD = table_of(_DIGITS + _LOWER + _UPPER + b"_")
_CLASSES = {b"d": table_of(_DIGITS), b"s": table_of(b" \t\n\v\f\r"), b"w": WORD}
_CLASSES |= {letter.upper(): _without(table) for letter, table in list(_CLASSES.items())}
_NAMED = {
    b"alnum": table_of(_DIGITS + _LOWER + _UPPER),
    b"alpha": table_of(_LOWER + _UPPER),
    b"blank": table_of(b" \t"),
    b"cntrl": table_of(bytes([*range(32), 127])),
    b"d": _CLASSES[b"d"],
    b"digit": _CLASSES[b"d"],
    b"graph": table_of(bytes(range(33, 127))),
    b"lower": table_of(_LOWER),
    b"print": table_of(bytes(range(32, 127))),
    b"punct": table_of(_PUNCT),
    b"s": _CLASSES[b"s"],
    b"space": _CLASSES[b"s"],
    b"upper": table_of(_UPPER),
    b"w": WORD,
    b"xdigit": table_of(_DIGITS + b"abcdefABCDEF"),
}
_ESCAPES = {b"0": 0, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}
_ANY_BUT_LINE_ENDS = _without(table_of(b"\n\r"))
_ASSERTIONS = {b"^": Op.BEGIN, b"$": Op.END, b"\\b": Op.BORDER, b"\\B": Op.NO_BORDER}

Steps = list[Step]


class _Parser:
    """Recursive descent; each method gives the steps of what it read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._depth = 0
        self.n_groups = 0

    def whole(self) -> Steps:
        steps = self._alternatives()
        if self._at < len(self._data):
            raise self._wrong("an unexpected ')'")
        return steps

    def _alternatives(self) -> Steps:
        first = self._sequence()
        if not self._accept(b"|"):
            return first
        rest = self._alternatives()
        return self._fitting([Step(Op.SPLIT, 1, len(first) + 2), *first, _jump(len(rest) + 1), *rest])

    def _sequence(self) -> Steps:
        steps: Steps = []
        while self._at < len(self._data) and self._data[self._at : self._at + 1] not in (b"|", b")"):
            steps += self._term()
            self._fitting(steps)
        return steps

    def _term(self) -> Steps:
        for mark, op in _ASSERTIONS.items():
            if self._accept(mark):
                return [Step(op)]
        steps = self._atom()
        while (repeated := self._repeated(steps)) is not None:
            steps = repeated
        return steps

    def _atom(self) -> Steps:
        if self._accept(b"("):
            return self._group()
        if self._accept(b"["):
            return [Step(Op.BYTE, table=self._bracket())]
        if self._accept(b"."):
            return [Step(Op.BYTE, table=_ANY_BUT_LINE_ENDS)]
        if self._accept(b"\\"):
            return self._escape()
        char = self._take()
        if char in b"*+?{":
            raise self._wrong(f"nothing to repeat before '{char.decode()}'")
        return [Step(Op.BYTE, table=table_of(char))]

    def _group(self) -> Steps:
        is_bare = self._accept(b"?:")
        if not is_bare and self._accept(b"?"):
            raise self._wrong("look-ahead and other groups with '(?' are not supported")
        group = 0
        if not is_bare:
            self.n_groups += 1
            group = self.n_groups
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"more than {MAX_DEPTH} groups in each other")
        inner = self._alternatives()
        self._depth -= 1
        if not self._accept(b")"):
            raise self._wrong("a ')' is missing")
        return inner if is_bare else [Step(Op.SAVE, 2 * group), *inner, Step(Op.SAVE, 2 * group + 1)]

    def _escape(self) -> Steps:
        if self._data[self._at : self._at + 1].isdigit() and self._data[self._at] != ord("0"):
            raise self._wrong("references back to groups are not supported")
        if (table := _CLASSES.get(self._data[self._at : self._at + 1])) is not None:
            self._at += 1
            return [Step(Op.BYTE, table=table)]
        return [Step(Op.BYTE, table=table_of(bytes([byte]))) for byte in self._char()]

    def _char(self) -> bytes:
        """What an escape stands for, behind its backslash."""
        char = self._take()
        if char in _ESCAPES:
            return bytes([_ESCAPES[char]])
        if char == b"c":
            return bytes([self._take()[0] % 32])
        if char in (b"x", b"u"):
            n = 2 if char == b"x" else 4
            digits = self._data[self._at : self._at + n]
            self._at += n
            try:
                code = int(digits, 16) if len(digits) == n else -1
                return bytes([code]) if n == 2 else chr(code).encode()
            except ValueError:
                raise self._wrong(f"'\\{char.decode()}' needs {n} hexadecimal digits") from None
        return char

    def _bracket(self) -> bytes:
        is_negated = self._accept(b"^")
        table = bytes(256)
        while not self._accept(b"]"):
            table = bytes(map(int.__or__, table, self._member()))
        return _without(table) if is_negated else table

    def _member(self) -> bytes:
        """A class, a range or a byte within brackets."""
        if self._accept(b"[:"):
            end = self._data.find(b":]", self._at)
            name = self._data[self._at : end] if end >= 0 else b""
            if name not in _NAMED:
                raise self._wrong("an unknown class in brackets")
            self._at = end + 2
            return _NAMED[name]
        if self._data[self._at : self._at + 1] == b"\\":
            letter = self._data[self._at + 1 : self._at + 2]
            if letter in _CLASSES:
                self._at += 2
                return _CLASSES[letter]
        first = self._bracket_bytes()
        behind = self._data[self._at : self._at + 2]
        if len(first) != 1 or behind[:1] != b"-" or behind[1:] in (b"]", b""):
            return table_of(first)
        self._at += 1
        last = self._bracket_bytes()
        if len(last) != 1 or last < first:
            raise self._wrong("a range in brackets goes backwards")
        return table_of(bytes(range(first[0], last[0] + 1)))

    def _bracket_bytes(self) -> bytes:
        if not self._accept(b"\\"):
            return self._take()
        return b"\b" if self._accept(b"b") else self._char()

    def _repeated(self, steps: Steps) -> Steps | None:
        """The steps with the quantifier that comes here; None if none comes."""
        low, high = 0, -1
        if self._accept(b"+"):
            low = 1
        elif self._accept(b"?"):
            high = 1
        elif self._accept(b"{"):
            low, high = self._counts()
        elif not self._accept(b"*"):
            return None
        is_lazy = self._accept(b"?")
        if (low + max(high - low, 1)) * len(steps) > MAX_STEPS:
            raise self._too_large()
        tail = _star(steps, is_lazy) if high < 0 else []
        for _ in range(max(high - low, 0)):
            tail = [_branch(len(steps) + len(tail) + 1, is_lazy), *steps, *tail]
        return self._fitting([*steps * low, *tail])

    def _counts(self) -> tuple[int, int]:
        end = self._data.find(b"}", self._at)
        low, comma, high = self._data[self._at : max(end, self._at)].partition(b",")
        if not low.isdigit() or (high and not high.isdigit()) or len(low) > 4 or len(high) > 4:
            raise self._wrong("'{' begins a count; write '\\{' for the character")
        self._at = end + 1
        counts = int(low), int(high) if high else -1 if comma else int(low)
        if 0 <= counts[1] < counts[0]:
            raise self._wrong("a count goes backwards")
        return counts

    def _accept(self, mark: bytes) -> bool:
        found = self._data.startswith(mark, self._at)
        self._at += len(mark) * found
        return found

    def _take(self) -> bytes:
        char = self._data[self._at : self._at + 1]
        if not char:
            raise self._wrong("it ends too early")
        self._at += 1
        return char

    def _fitting(self, steps: Steps) -> Steps:
        if len(steps) > MAX_STEPS:
            raise self._too_large()
        return steps

    def _too_large(self) -> InvalidRequest:
        return self._wrong(f"it is too large: at most {MAX_STEPS} steps")

    def _wrong(self, why: str) -> InvalidRequest:
        shown = self._data[:80].decode(errors="replace")
        return InvalidRequest(f"the pattern '{shown}': {why} (at {self._at})")


def _jump(to: int) -> Step:
    return Step(Op.SPLIT, to, to)


def _branch(over: int, is_lazy: bool) -> Step:
    """Into what follows, or over it; the other way round first if lazy."""
    return Step(Op.SPLIT, over, 1) if is_lazy else Step(Op.SPLIT, 1, over)


def _star(steps: Steps, is_lazy: bool) -> Steps:
    return [_branch(len(steps) + 2, is_lazy), *steps, _jump(-len(steps) - 1)]
