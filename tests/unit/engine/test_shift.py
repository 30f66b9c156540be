"""What goes of a full row and which chunks serve again, against llama-server's own loops played on plain lists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.shift import Chunk, Cut, choose_cut, chunk_cuts, find_chunks, n_kept
from corral.ids import Token

ROWS = st.lists(st.integers(0, 2), max_size=30)


def shifted(tokens: Sequence[Token], n_keep: int, n_discard: int) -> list[Token]:
    """llama-server's context shift on the list of a row's tokens."""
    n_left = len(tokens) - n_keep
    n_discard = n_discard if n_discard else n_left // 2
    n_discard = max(0, min(n_discard, max(0, n_left - 1)))
    new = list(tokens)
    for i in range(n_keep + n_discard, len(new)):
        new[i - n_discard] = new[i]
    return new[: len(new) - n_discard]


def moved(held: Sequence[Token], wanted: Sequence[Token], n_past: int, n_min: int) -> list[Token]:
    """llama-server's chunk reuse on cells by position; what the row holds at the positions it counts as past."""
    cells = dict(enumerate(held))
    head_c = head_p = n_past
    while head_c < len(held) and head_p < len(wanted):
        n_match = 0
        while (
            head_c + n_match < len(held)
            and head_p + n_match < len(wanted)
            and held[head_c + n_match] == wanted[head_p + n_match]
        ):
            n_match += 1
        if n_match >= n_min:
            for pos in range(head_p, head_c):
                cells.pop(pos, None)
            for i in range(n_match):
                cells[head_p + i] = cells.pop(head_c + i)
            n_past += n_match
            head_c += n_match
            head_p += n_match
        else:
            head_c += 1
    return [cells[pos] for pos in range(n_past)]


@given(tokens=st.lists(st.integers(0, 99), min_size=2, max_size=40), n_keep=st.integers(0, 40), n=st.integers(0, 50))
def test_s17_a_cut_is_the_shift_of_llama_server(tokens: list[int], n_keep: int, n: int) -> None:
    cut = choose_cut(len(tokens), n_keep, n)
    if cut is None:
        assert len(tokens) - n_keep < 2
    else:
        assert cut.apply(tokens) == shifted(tokens, n_keep, n)
        assert cut.keep == n_keep and cut.discard >= 1 and cut.keep + cut.discard < len(tokens)


@pytest.mark.parametrize(
    ("n_keep", "n_prompt", "add_bos", "kept"),
    [
        (0, 10, False, 0),
        (0, 10, True, 1),
        (5, 10, True, 6),
        (-1, 10, False, 10),
        (-1, 10, True, 11),
        (99, 10, True, 28),
    ],
)
def test_s17_the_beginning_that_is_kept(n_keep: int, n_prompt: int, add_bos: bool, kept: int) -> None:
    assert n_kept(n_keep, n_prompt, add_bos, 32) == kept


def test_s17_a_tiny_context_keeps_nothing_rather_than_less() -> None:
    assert n_kept(-1, 2, True, 3) == 0


def test_s17_half_of_what_is_not_kept_goes_by_default_and_never_all_of_it() -> None:
    assert choose_cut(31, 4, 0) == Cut(4, 13)
    assert choose_cut(31, 4, 100) == Cut(4, 26)
    assert choose_cut(31, 30, 0) is None


@given(held=ROWS, wanted=ROWS, n_min=st.integers(1, 5))
def test_s15_chunks_are_those_of_llama_server(held: list[int], wanted: list[int], n_min: int) -> None:
    n_past = 0
    while n_past < min(len(held), len(wanted)) and held[n_past] == wanted[n_past]:
        n_past += 1
    chunks = find_chunks(held, wanted, n_past, n_min)
    row = held[: chunks[-1].src + chunks[-1].n] if chunks else held[:n_past]
    for cut in chunk_cuts(chunks):
        assert cut.discard >= 1 and cut.keep + cut.discard < len(row)
        row = cut.apply(row)
    assert row == moved(held, wanted, n_past, n_min) == wanted[: n_past + sum(c.n for c in chunks)]
    assert all(chunk.n >= n_min for chunk in chunks)


def test_s15_a_paragraph_taken_out_of_the_middle_moves_the_rest() -> None:
    held, wanted = [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5, 6, 8, 9]
    assert find_chunks(held, wanted, 2, 2) == [Chunk(4, 2, 2), Chunk(7, 4, 2)]
    assert chunk_cuts(find_chunks(held, wanted, 2, 2)) == [Cut(2, 2), Cut(4, 1)]
    assert find_chunks(held, wanted, 2, 3) == []
