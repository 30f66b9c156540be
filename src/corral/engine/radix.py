"""The index of prefixes: one radix tree that says which holder (a row, a snapshot) keeps which tokens.

A holder's sequence is the path from the root of its key to its tail node; it always ends at a node's end. The tree
knows tokens only. Which cells they occupy is ``cells``; who may use them is ``ledger``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from corral.ids import CacheKey, Token

H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Level(Generic[H]):
    """The first ``n`` tokens of what was asked for are held by each of ``holders`` (never empty)."""

    n: int
    holders: frozenset[H]


class Node(Generic[H]):
    """An edge and what hangs below it. ``end`` is the number of tokens from the root to the edge's end."""

    __slots__ = ("children", "end", "holders", "parent", "tokens")

    def __init__(self, parent: Node[H] | None, tokens: list[Token], end: int, holders: set[H]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.end = end
        self.holders = holders
        self.children: dict[Token, Node[H]] = {}

    @property
    def start(self) -> int:
        return self.end - len(self.tokens)


def common_prefix(a: Sequence[Token], b: Sequence[Token]) -> int:
    """How many tokens from the start are equal."""
    n = min(len(a), len(b))
    if type(a) is not type(b):  # a list never equals a tuple
        a, b = list(a[:n]), list(b[:n])
    if a[:n] == b[:n]:
        return n
    lo, hi = 0, n - 1  # the answer is in [lo, hi]; halves compare at C speed
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if a[lo:mid] == b[lo:mid]:
            lo = mid
        else:
            hi = mid - 1
    return lo


class RadixTree(Generic[H]):
    """Sequences of holders under keys. All lengths count tokens."""

    def __init__(self) -> None:
        self._roots: dict[CacheKey, Node[H]] = {}
        self._tails: dict[H, Node[H]] = {}
        self._keys: dict[H, CacheKey] = {}

    def __contains__(self, holder: H) -> bool:
        return holder in self._tails

    def key(self, holder: H) -> CacheKey:
        """Raises KeyError for a holder that is not known."""
        return self._keys[holder]

    def holders(self) -> list[H]:
        """Everyone who holds something."""
        return list(self._tails)

    def length(self, holder: H) -> int:
        """0 for a holder that is not known."""
        tail = self._tails.get(holder)
        return tail.end if tail else 0

    def tokens(self, holder: H) -> list[Token]:
        """The holder's whole sequence."""
        parts: list[list[Token]] = []
        node = self._tails.get(holder)
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return [t for part in reversed(parts) for t in part]

    def match(self, key: CacheKey, tokens: Sequence[Token]) -> list[Level[H]]:
        """Who holds beginnings of ``tokens``, shortest first; levels grow in n and shrink in holders."""
        levels: list[Level[H]] = []
        node = self._roots.get(key)
        n = 0
        while node is not None and n < len(tokens):
            node = node.children.get(tokens[n])
            if node is None:
                break
            m = common_prefix(node.tokens, tokens[n : n + len(node.tokens)])
            n += m
            levels.append(Level(n, frozenset(node.holders)))
            if m < len(node.tokens):
                break
        return levels

    def extend(self, holder: H, key: CacheKey, tokens: Sequence[Token]) -> None:
        """Append tokens to the holder's sequence; a new holder begins at the key's root."""
        if not tokens:
            return
        tail = self._tails.get(holder)
        if tail is None:
            tail = self._roots.setdefault(key, Node(None, [], 0, set()))
            self._keys[holder] = key
        if tail.parent is not None and not tail.children and len(tail.holders) == 1:
            tail.tokens.extend(tokens)
            tail.end += len(tokens)
            return
        self._tails[holder] = self._descend(tail, list(tokens), holder)

    def _descend(self, node: Node[H], tokens: list[Token], holder: H) -> Node[H]:
        while tokens:
            child = node.children.get(tokens[0])
            if child is None:
                leaf = Node(node, tokens, node.end + len(tokens), {holder})
                node.children[tokens[0]] = leaf
                return leaf
            n = common_prefix(child.tokens, tokens)
            if n < len(child.tokens):
                child = self._split(child, n)
            child.holders.add(holder)
            node, tokens = child, tokens[n:]
        return node

    def copy(self, src: H, dst: H, n: int) -> None:
        """Make ``dst`` hold the first ``n`` tokens of ``src``. Raises ValueError if src is shorter."""
        if n > self.length(src):
            raise ValueError(f"copy of {n} tokens from a holder of {self.length(src)}")
        self.drop(dst)
        if n == 0:
            return
        node = self._tails[src]
        while node.start >= n:
            node = _parent(node)
        if node.end > n:
            node = self._split(node, n - node.start)
        self._tails[dst] = node
        self._keys[dst] = self._keys[src]
        while node.parent is not None:
            node.holders.add(dst)
            node = node.parent

    def trim(self, holder: H, n: int) -> None:
        """Keep the first ``n`` tokens. Does nothing if there are no more than that."""
        if n <= 0:
            self.drop(holder)
            return
        node = self._tails.get(holder)
        if node is None or node.end <= n:
            return
        while node.start >= n:
            node = self._leave(node, holder)
        if node.end > n:
            upper = self._split(node, n - node.start)
            self._leave(node, holder)
            node = upper
        self._tails[holder] = node

    def drop(self, holder: H) -> None:
        """Forget the holder."""
        node = self._tails.pop(holder, None)
        if node is None:
            return
        while node.parent is not None:
            node = self._leave(node, holder)
        key = self._keys.pop(holder)
        if not node.children:
            del self._roots[key]

    def _leave(self, node: Node[H], holder: H) -> Node[H]:
        """Take the holder off a node (removing the node with its last holder); returns the parent."""
        parent = _parent(node)
        node.holders.discard(holder)
        if not node.holders:
            del parent.children[node.tokens[0]]
        else:
            self._merge_below(node)
        return parent

    def _split(self, node: Node[H], n: int) -> Node[H]:
        """Cut the edge after ``n`` tokens; returns the new upper part. Tails keep pointing at the lower part."""
        parent = _parent(node)
        upper = Node(parent, node.tokens[:n], node.start + n, set(node.holders))
        parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[n:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _merge_below(self, node: Node[H]) -> None:
        """Join a node with its only child when both have the same holders."""
        if len(node.children) != 1:
            return
        (child,) = node.children.values()
        if len(child.holders) != len(node.holders):
            return
        node.tokens.extend(child.tokens)
        node.end, node.children = child.end, child.children
        for grandchild in node.children.values():
            grandchild.parent = node
        for holder in node.holders:
            if self._tails[holder] is child:
                self._tails[holder] = node

    def fork(self) -> RadixTree[H]:
        """An independent copy, for planning."""
        other: RadixTree[H] = RadixTree()
        twins: dict[int, Node[H]] = {}
        other._roots = {key: _twin(root, twins) for key, root in self._roots.items()}
        other._tails = {holder: twins[id(node)] for holder, node in self._tails.items()}
        other._keys = dict(self._keys)
        return other

    def nodes(self) -> Iterator[tuple[CacheKey, Node[H]]]:
        """Every node but the roots, parents first."""
        for key, root in self._roots.items():
            stack = list(root.children.values())
            while stack:
                node = stack.pop()
                yield key, node
                stack.extend(node.children.values())

    def check(self) -> None:
        """Raise AssertionError if the structure is broken."""
        seen: dict[H, int] = {}
        for _, node in self.nodes():
            parent = _parent(node)
            assert node.tokens and node.holders, "empty node"
            assert parent.children[node.tokens[0]] is node, "child under the wrong token"
            assert node.end == parent.end + len(node.tokens), "wrong end"
            assert parent.parent is None or node.holders <= parent.holders, "a holder skips its parent"
            for holder in node.holders:
                seen[holder] = max(seen.get(holder, 0), node.end)
        lengths = {holder: tail.end for holder, tail in self._tails.items()}
        assert seen == lengths, f"tails {lengths} differ from the tree's {seen}"


def _parent(node: Node[H]) -> Node[H]:
    assert node.parent is not None, "the root holds no tokens"
    return node.parent


def _twin(root: Node[H], twins: dict[int, Node[H]]) -> Node[H]:
    top: Node[H] = Node(None, [], 0, set())
    stack = [(root, top)]
    while stack:
        old, new = stack.pop()
        for token, child in old.children.items():
            twin = Node(new, list(child.tokens), child.end, set(child.holders))
            twins[id(child)] = new.children[token] = twin
            stack.append((child, twin))
    return top
