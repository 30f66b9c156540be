"""The arithmetic of approximate reuse: what of a full row goes, and which chunks further on serve again when moved.

Numbers and token lists only. Both are llama-server's, to the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.ids import Token
from corral.ports import MemoryTraits, Rollback


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens [keep, keep + discard) go, those behind move down by ``discard`` >= 1."""

    keep: int
    discard: int

    def apply(self, tokens: Sequence[Token]) -> list[Token]:
        """What is left."""
        return [*tokens[: self.keep], *tokens[self.keep + self.discard :]]


def can_move(traits: MemoryTraits) -> bool:
    """Whether cells of this memory can be taken out of the middle of a row and the rest moved.

    A recurrent state says that it can shift, but nothing can be taken out of it.
    """
    return traits.can_shift and traits.rollback is Rollback.ANY


def n_kept(n_keep: int, n_prompt: int, add_bos: bool, n_ctx: int) -> int:
    """Tokens at the beginning that every shift spares. ``n_keep`` < 0 means the prompt; a BOS is kept besides."""
    return max(0, min(n_ctx - 4, (n_prompt if n_keep < 0 else n_keep) + add_bos))


def choose_cut(n_computed: int, n_keep: int, n_discard: int) -> Cut | None:
    """What goes of a full row of ``n_computed`` tokens: ``n_discard``, or half of what is not kept where it is 0.

    At least one token goes and one that is not kept stays; None where that cannot be.
    """
    n_left = n_computed - n_keep
    if n_left < 2:
        return None
    return Cut(n_keep, min(n_discard or n_left // 2, n_left - 1))


@dataclass(frozen=True, slots=True)
class Chunk:
    """``n`` tokens that a row holds from ``src`` on and a prompt wants from ``dst`` on, ``dst`` <= ``src``."""

    src: int
    dst: int
    n: int


def find_chunks(held: Sequence[Token], wanted: Sequence[Token], n_past: int, n_min: int) -> list[Chunk]:
    """Chunks of at least ``n_min`` equal tokens beyond the common prefix ``n_past``, each behind the one before.

    The wanted ones join without a gap: a chunk begins where the one before ended.
    """
    chunks: list[Chunk] = []
    src = dst = n_past
    while src < len(held) and dst < len(wanted):
        n = _n_equal(held, src, wanted, dst)
        if n >= n_min:
            chunks.append(Chunk(src, dst, n))
            src, dst = src + n, dst + n
        else:
            src += 1
    return chunks


def _n_equal(a: Sequence[Token], i: int, b: Sequence[Token], j: int) -> int:
    n, n_max = 0, min(len(a) - i, len(b) - j)
    while n < n_max and a[i + n] == b[j + n]:
        n += 1
    return n


def chunk_cuts(chunks: Sequence[Chunk]) -> list[Cut]:
    """Cuts, one after the other, that bring the chunks of a row that ends with the last of them to their places."""
    cuts: list[Cut] = []
    n_gone = 0
    for chunk in chunks:
        n_gap = chunk.src - n_gone - chunk.dst
        if n_gap:
            cuts.append(Cut(chunk.dst, n_gap))
        n_gone += n_gap
    return cuts
