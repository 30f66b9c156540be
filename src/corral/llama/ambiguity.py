"""Owns one question: in how many ways can libllama's sampler walk through a grammar while it reads one token?

libllama keeps a set of stacks. To reject a token it follows, for every stack that takes the first character, all stacks
after it, for each of these all after the next character, and so on; it never joins equal ones. So a token costs as many
visits as there are paths of its length. Here equal stacks are joined and their paths only counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from corral.llama.gbnf import MAX_CODE_POINT, CharClass, Graph, bad_grammar

MAX_PATHS = 100_000
N_CHARS = 16  # longer tokens are rare, but for runs of one character
N_RUN = 64
N_DEEP = 24  # characters that first make the stack as deep as possible
RUNS = tuple(map(ord, " \t\n-=_*#/."))
"""Characters of which vocabularies hold long runs."""
MAX_VISITS = 400_000

_END = -(1 << 60)
_COUNT_BITS = 12  # counts of a repetition are at most 2000
_EMPTY = 0
Paths = dict[int, int]
"""Number of paths to each stack."""


def check_ambiguity(graph: Graph) -> None:
    """Raises InvalidRequest if some token may cost libllama too many paths, or if the grammar is too large to tell."""
    machine = _Machine(graph)
    walk = _Walk(machine)
    runs = _distinct(RUNS, machine.classes)
    for rule in reversed(range(len(graph.rules))):  # what is called before what calls it, mostly
        start = dict.fromkeys(machine.begin(rule), 1)
        walk.read(start, N_CHARS)
        walk.read(walk.out(walk.deepest(start)), N_CHARS)
        for char in runs:
            walk.read(start, N_RUN, char)


def _distinct(chars: Iterable[int], classes: list[CharClass]) -> list[int]:
    """One of those that the same classes hold."""
    return list({tuple(_has(ranges, char) for ranges in classes): char for char in chars}.values())


class _Machine:
    """libllama's pushdown automaton. A stack is a number; 0 is the empty one.

    A frame of a stack is a place in ``_code`` (what comes next in some alternate) or, below 0, a repetition and how
    often its symbol was read. Repetitions are counted, not written out; otherwise stacks are libllama's one to one.
    """

    def __init__(self, graph: Graph) -> None:
        self._repeats = graph.repeats
        self.classes: list[CharClass] = []
        self._class_numbers: dict[CharClass, int] = {}
        self._code: list[int] = [_END]
        self._starts = [
            [] if rule in graph.repeats else [self._write(graph, alternate) for alternate in alternates]
            for rule, alternates in enumerate(graph.rules)
        ]
        self._bodies = {rule: self._write(graph, [repeat.symbol]) for rule, repeat in graph.repeats.items()}
        self._frames, self._parents, self._heights = [_END], [_EMPTY], [0]
        self._stacks: dict[tuple[int, int], int] = {}
        self._ready: dict[int, tuple[int, ...]] = {}
        self._after: dict[int, tuple[int, ...]] = {}
        self._lowest: dict[int, int] = {}
        self.n_visits = 0

    def _write(self, graph: Graph, symbols: Iterable[int]) -> int:
        start = len(self._code)
        for symbol in symbols:
            if symbol >= 0:
                self._code.append(symbol)
            else:
                self._code += (-1 - self._class_number(chars) for chars in graph.terminals[-1 - symbol])
        self._code.append(_END)
        return start

    def _class_number(self, chars: CharClass) -> int:
        number = self._class_numbers.setdefault(chars, len(self.classes))
        if number == len(self.classes):
            self.classes.append(chars)
        return number

    def begin(self, rule: int) -> list[int]:
        """The stacks with which ``rule`` begins, as if it were the root."""
        return list(dict.fromkeys(ready for stack in self._enter(rule, _EMPTY) for ready in self.ready(stack)))

    def top(self, stack: int) -> CharClass:
        """The characters that a ready stack takes."""
        return self.classes[-1 - self._code[self._frames[stack]]] if stack else ()

    def after(self, stack: int) -> tuple[int, ...]:
        """The ready stacks once a ready one has taken a character."""
        if stack not in self._after:
            self._after[stack] = self.ready(self._push(self._parents[stack], self._frames[stack] + 1))
        return self._after[stack]

    def lowest_after(self, stack: int) -> int:
        """The height of the lowest of them."""
        if stack not in self._lowest:
            self._lowest[stack] = min((self._heights[after] for after in self.after(stack)), default=0)
        return self._lowest[stack]

    def ready(self, stack: int) -> tuple[int, ...]:
        """What libllama makes of a stack before the next character: all that wait for one, or are empty."""
        if stack not in self._ready:
            self._ready[stack] = tuple(self._close(stack))
        return self._ready[stack]

    def _close(self, stack: int) -> Iterable[int]:
        todo, seen = [stack], set()
        while todo:
            stack = todo.pop()
            if stack in seen:
                continue
            seen.add(stack)
            frame, parent = self._frames[stack], self._parents[stack]
            if stack == _EMPTY or (frame >= 0 and self._code[frame] < 0):
                yield stack
            elif frame < 0:
                todo += self._again(frame, parent)
            else:
                todo += self._enter(self._code[frame], self._push(parent, frame + 1))
        self.spend(len(seen))

    def _enter(self, rule: int, parent: int) -> list[int]:
        if rule in self._repeats:
            return [self._count(rule, 0, parent)]
        return [self._push(parent, start) for start in self._starts[rule]]

    def _again(self, frame: int, parent: int) -> list[int]:
        rule, n = divmod(-1 - frame, 1 << _COUNT_BITS)
        low, high = self._repeats[rule].low, self._repeats[rule].high
        stacks = [parent] if n >= low else []
        if high is None or n < high:
            rest = self._count(rule, min(n + 1, low) if high is None else n + 1, parent)
            stacks.append(self._push(rest, self._bodies[rule]))
        return stacks

    def _count(self, rule: int, n: int, parent: int) -> int:
        if n == self._repeats[rule].high:
            return parent
        return self._intern(parent, -1 - (rule << _COUNT_BITS | n))

    def _push(self, parent: int, place: int) -> int:
        return parent if self._code[place] == _END else self._intern(parent, place)

    def _intern(self, parent: int, frame: int) -> int:
        stack = self._stacks.setdefault((parent, frame), len(self._frames))
        if stack == len(self._frames):
            self._frames.append(frame)
            self._parents.append(parent)
            self._heights.append(self._heights[parent] + 1)
        return stack

    def spend(self, n_visits: int) -> None:
        """Raises InvalidRequest once all work together exceeds the budget."""
        self.n_visits += n_visits
        if self.n_visits > MAX_VISITS:
            raise bad_grammar("it is too large or too ambiguous: its ways to match a text cannot be counted")


class _Walk:
    """Reads the characters that do the most harm. Every walk raises InvalidRequest if its paths become too many."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        self._read: dict[tuple[int | None, frozenset[tuple[int, int]]], int] = {}
        """How many characters were read from here on."""

    def read(self, paths: Paths, n_chars: int, char: int | None = None) -> None:
        """``char`` again and again; without one always the character that most paths take."""
        for n_left in range(n_chars, 0, -1):
            state = char, frozenset(paths.items())
            if self._read.get(state, 0) >= n_left:
                return
            self._read[state] = n_left
            taken = self._most_taken(paths) if char is None else [s for s in paths if _has(self._machine.top(s), char)]
            if not taken:
                return
            paths = self._step(paths, taken)

    def deepest(self, paths: Paths) -> Paths:
        """Where the way leads that leaves most on the stack: what was opened there is still to be closed."""
        for _ in range(N_DEEP):
            highest = max(self._takers(paths), key=self._machine.lowest_after, default=None)
            if highest is None:
                break
            paths = dict.fromkeys(self._machine.after(highest), 1)
        return paths

    def out(self, paths: Paths) -> Paths:
        """One step down, and on while there is only one way."""
        for _ in range(N_DEEP):
            lowest = min(self._takers(paths), key=self._machine.lowest_after, default=None)
            if lowest is None:
                break
            paths = dict.fromkeys(self._machine.after(lowest), 1)
            if len(paths) > 1:
                break
        return paths

    def _takers(self, paths: Paths) -> list[int]:
        takers = [stack for stack in paths if self._machine.top(stack)]
        self._machine.spend(len(takers))
        return takers

    def _step(self, paths: Paths, taken: list[int]) -> Paths:
        after: Paths = {}
        n_paths = 0
        for stack in taken:
            n = paths[stack]
            n_paths += n
            for next_stack in self._machine.after(stack):
                after[next_stack] = after.get(next_stack, 0) + n
        self._machine.spend(len(after))
        if n_paths > MAX_PATHS:
            raise bad_grammar(
                f"it is too ambiguous: a few characters can be matched in more than {MAX_PATHS} ways; let repeated and "
                "optional parts that follow each other begin with different characters"
            )
        return after

    def _most_taken(self, paths: Paths) -> list[int]:
        """The stacks that take the character which most paths take."""
        tops = {stack: top for stack in paths if (top := self._machine.top(stack))}
        if len(set(tops.values())) <= 1:
            return list(tops)
        edges: dict[int, int] = {}
        for stack, top in tops.items():
            for low, high in top:
                edges[low] = edges.get(low, 0) + paths[stack]
                edges[high + 1] = edges.get(high + 1, 0) - paths[stack]
        self._machine.spend(len(edges))
        n = most = best = 0
        for char in sorted(edges):
            n += edges[char]
            if n > most:
                most, best = n, char
        return [stack for stack, top in tops.items() if _has(top, best)]


def _has(ranges: CharClass, char: int) -> bool:
    at = bisect_right(ranges, (char, MAX_CODE_POINT + 1))
    return at > 0 and ranges[at - 1][1] >= char
