"""Owns the search for a pattern in text that is still coming: no byte is looked at twice, whatever the pattern."""

from __future__ import annotations

from dataclasses import dataclass

from corral.guidance.pattern import WORD, Op, Program

Registers = tuple[int, ...]
Thread = tuple[int, Registers]
"""A step that is due, and what was saved on the way to it."""

ANYWHERE, WHOLE = False, True


@dataclass(frozen=True, slots=True)
class Search:
    """The search for a program's first match, as far as the text came. A value: ``advanced`` gives another.

    ``threads`` are possible matches, those that count first first: the leftmost, and of these what alternatives and
    quantifiers prefer. ``is_whole``: only a match of all the text counts. ``found`` are the registers of the match that
    counts, as far as the text came.
    """

    program: Program
    is_whole: bool = ANYWHERE
    threads: tuple[Thread, ...] | None = None
    n_bytes: int = 0
    last: int = -1
    found: Registers = ()

    @property
    def start(self) -> int:
        """Where the first group that is not empty begins in the text, or else the match; -1: there is none."""
        groups = zip(self.found[2::2], self.found[3::2], strict=True)
        return next((begin for begin, end in groups if end > begin), self.found[0] if self.found else -1)

    def advanced(self, data: bytes) -> Search:
        """With more text. ``found`` tells of all of it."""
        registers = (-1,) * (2 * self.program.n_groups)
        threads = ((0, registers),) if self.threads is None else self.threads
        at, last, matched = self.n_bytes, self.last, () if self.is_whole else self.found
        for byte in data:
            ready, match = self._followed(threads, at, last, byte)
            matched = match or matched
            steps = self.program.steps
            threads = tuple((step + 1, saved) for step, saved in ready if steps[step].table[byte])
            at, last = at + 1, byte
            if not matched and not self.is_whole:
                threads += ((0, registers),)
        _, match = self._followed(threads, at, last, -1)
        return Search(self.program, self.is_whole, threads, at, last, match or matched)

    def _followed(self, threads: tuple[Thread, ...], at: int, last: int, byte: int) -> tuple[list[Thread], Registers]:
        """The threads at steps that want a byte, up to the first that has matched; and what that one saved.

        ``last`` and ``byte`` are the bytes around ``at``; -1 at the ends of the text.
        """
        steps, ready, seen = self.program.steps, [], set()
        for thread in threads:
            todo = [thread]
            while todo:
                step, saved = todo.pop()
                if step in seen:
                    continue
                seen.add(step)
                one = steps[step]
                match one.op:
                    case Op.BYTE:
                        ready.append((step, saved))
                    case Op.SPLIT:
                        todo += ((step + one.b, saved), (step + one.a, saved))
                    case Op.SAVE:
                        todo.append((step + 1, (*saved[: one.a], at, *saved[one.a + 1 :])))
                    case Op.MATCH:
                        if byte < 0 or not self.is_whole:
                            return ready, saved
                    case _:
                        if _holds(one.op, last, byte):
                            todo.append((step + 1, saved))
        return ready, ()


def _holds(op: Op, last: int, byte: int) -> bool:
    if op is Op.BEGIN:
        return last < 0
    if op is Op.END:
        return byte < 0
    is_border = (last >= 0 and WORD[last]) != (byte >= 0 and WORD[byte])
    return bool(is_border) == (op is Op.BORDER)
