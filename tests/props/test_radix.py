"""The radix tree says what a dictionary of lists would say."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.engine.radix import RadixTree, common_prefix
from corral.ids import CacheKey

HOLDERS = st.integers(0, 5)
KEYS = st.sampled_from([CacheKey("a"), CacheKey("b")])
TOKENS = st.lists(st.integers(0, 2), max_size=6)


class RadixAgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree: RadixTree[int] = RadixTree()
        self.lists: dict[int, tuple[CacheKey, list[int]]] = {}

    @rule(holder=HOLDERS, key=KEYS, tokens=TOKENS)
    def extend(self, holder: int, key: CacheKey, tokens: list[int]) -> None:
        key, old = self.lists.get(holder, (key, []))
        self.tree.extend(holder, key, tokens)
        self._set(holder, key, old + tokens)

    @rule(holder=HOLDERS, n=st.integers(0, 12))
    def trim(self, holder: int, n: int) -> None:
        self.tree.trim(holder, n)
        if holder in self.lists:
            key, old = self.lists[holder]
            self._set(holder, key, old[:n])

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), dst=HOLDERS)
    def copy(self, data: st.DataObject, dst: int) -> None:
        src = data.draw(st.sampled_from(sorted(self.lists)))
        if src == dst:
            return
        key, old = self.lists[src]
        n = data.draw(st.integers(0, len(old)))
        self.tree.copy(src, dst, n)
        self._set(dst, key, old[:n])

    @rule(holder=HOLDERS)
    def drop(self, holder: int) -> None:
        self.tree.drop(holder)
        self.lists.pop(holder, None)

    @rule(holder=HOLDERS, key=KEYS, tokens=TOKENS, move=st.booleans())
    def fork(self, holder: int, key: CacheKey, tokens: list[int], move: bool) -> None:
        """Change one of the twins; go on with the other."""
        twin = self.tree.fork()
        changed, self.tree = (self.tree, twin) if move else (twin, self.tree)
        changed.extend(holder, key, tokens)
        changed.trim(holder, 2)
        changed.drop((holder + 1) % 6)
        changed.check()

    @rule(key=KEYS, query=st.lists(st.integers(0, 2), max_size=12))
    def match(self, key: CacheKey, query: list[int]) -> None:
        levels = self.tree.match(key, query)
        assert [level.n for level in levels] == sorted({level.n for level in levels})
        reach: dict[int, int] = {}
        for level in levels:
            assert level.holders
            reach |= dict.fromkeys(level.holders, level.n)
        expected = {h: common_prefix(tokens, query) for h, (k, tokens) in self.lists.items() if k == key}
        assert reach == {holder: n for holder, n in expected.items() if n}

    @invariant()
    def same(self) -> None:
        self.tree.check()
        for holder in range(6):
            key, tokens = self.lists.get(holder, (None, []))
            assert self.tree.tokens(holder) == tokens
            assert self.tree.length(holder) == len(tokens)
            assert (holder in self.tree) == bool(tokens)
            assert key is None or self.tree.key(holder) == key

    def _set(self, holder: int, key: CacheKey, tokens: list[int]) -> None:
        self.lists.pop(holder, None)
        if tokens:
            self.lists[holder] = (key, tokens)


TestRadixAgainstLists = RadixAgainstLists.TestCase
