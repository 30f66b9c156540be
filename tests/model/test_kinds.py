"""The equality law for every kind of memory, on real libllama: whatever way a row came to its tokens, what follows is
what follows them alone and cold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from corral.config import ContextConfig, ModelConfig
from corral.ids import RowId, Token
from corral.llama.context import LlamaContext
from corral.llama.model import LlamaModel
from corral.ops import Copy, Span, Trim
from corral.ports import DecodeStatus, Rollback

N_ROWS, N_OPS, N_MAX = 4, 80, 220
CLOSE = 0.01
"""Logits lie within tens; rounding in F32 differs by up to 0.002 with the order of cells."""
CONFIG = ContextConfig(
    n_ctx=1024,
    n_slots=N_ROWS,
    n_rows=N_ROWS,
    n_batch=128,
    n_ubatch=32,
    n_threads=1,
    n_threads_batch=1,
    flash_attn=False,
    type_k="f32",
    type_v="f32",
)
KINDS = ("attention", "window", "window-full", "recurrent", "hybrid", "hybrid-window", "hybrid-window-full")


@dataclass
class Player:
    """A context, what its rows should hold, and the same model alone."""

    context: LlamaContext
    alone: LlamaContext
    draw: random.Random
    tokens: list[tuple[Token, ...]] = field(default_factory=lambda: [()] * N_ROWS)
    headless: set[int] = field(default_factory=set)
    saved: list[tuple[tuple[Token, ...], bytes]] = field(default_factory=list)
    partial: list[tuple[tuple[Token, ...], bytes]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    def step(self) -> None:
        ops = [self.decode] * 6 + [self.trim, self.copy, self.save, self.load, self.checkpoint, self.restore]
        op = self.draw.choice(ops)
        if op(self.draw.randrange(N_ROWS)):
            self.done[op.__name__] = self.done.get(op.__name__, 0) + 1

    def decode(self, _: int) -> bool:
        spans, room = [], self.context.traits.n_batch
        for row in self.draw.sample(range(N_ROWS), self.draw.choice([1, 1, 2, 4])):
            n = min(self.draw.choice([1, 1, 2, 9, 30, 70]), room - N_ROWS)
            if row in self.headless or n < 1:
                continue
            if len(self.tokens[row]) + n > N_MAX:
                self._set(row, ())
                self.context.apply(Trim(RowId(row), 0))
            new = tuple(self.draw.randrange(3, 354) for _ in range(n))
            spans.append(Span(RowId(row), len(self.tokens[row]), new, 1))
            room -= n
        if not spans:
            return False
        assert self.context.decode(spans) is DecodeStatus.OK
        for span, logits in zip(spans, self.context.logits().copy(), strict=True):
            self.tokens[span.row] += span.tokens
            assert_follows(self.alone, self.tokens[span.row], logits)
        return True

    def trim(self, row: int) -> bool:
        n = self.draw.randrange(len(self.tokens[row]) + 1)
        if not self._can_cut(row, n):
            return False
        self.context.apply(Trim(RowId(row), n))
        self._set(row, self.tokens[row][:n])
        return True

    def copy(self, src: int) -> bool:
        dst, end = self.draw.randrange(N_ROWS), len(self.tokens[src])
        n = self.draw.choice([end, self.draw.randrange(end + 1)])
        traits = self.context.traits
        if not traits.shared_cells or src == dst or not (traits.whole_copy_only or self._can_cut(src, n)):
            return False
        assert self.context.apply(Copy(RowId(src), RowId(dst), n))
        self._set(dst, self.tokens[src][:n])
        if traits.whole_copy_only and n and (n < end or src in self.headless):
            self.headless.add(dst)
        return True

    def save(self, row: int) -> bool:
        if row in self.headless:
            return False
        self.saved.append((self.tokens[row], self.context.save(RowId(row))))
        return True

    def load(self, row: int) -> bool:
        if not self.saved:
            return False
        tokens, data = self.draw.choice(self.saved)
        assert self.context.load(RowId(row), data)
        self._set(row, tokens)
        return True

    def checkpoint(self, row: int) -> bool:
        if row in self.headless or not self.tokens[row] or self.context.traits.rollback is Rollback.ANY:
            return False
        self.partial.append((self.tokens[row], self.context.checkpoint(RowId(row))))
        return True

    def restore(self, row: int) -> bool:
        """Any checkpoint that fits any row."""
        for tokens, data in self.draw.sample(self.partial, len(self.partial)):
            fit = [r for r in range(N_ROWS) if self.tokens[r][: len(tokens)] == tokens]
            if fit:
                row = self.draw.choice(fit)
                assert self.context.restore(RowId(row), len(tokens), data)
                self._set(row, tokens)
                return True
        return False

    def _set(self, row: int, tokens: tuple[Token, ...]) -> None:
        self.tokens[row] = tokens
        self.headless.discard(row)

    def _can_cut(self, row: int, n: int) -> bool:
        whole = n in (0, len(self.tokens[row]))
        return (not whole or row not in self.headless) and self.context.traits.can_cut(
            n, *self.context.bounds(RowId(row))
        )


def assert_follows(alone: LlamaContext, tokens: tuple[Token, ...], logits: np.ndarray) -> None:
    """That these are the logits after ``tokens`` alone and cold."""
    alone.apply(Trim(RowId(0), 0))
    assert alone.decode([Span(RowId(0), 0, tokens, 1)]) is DecodeStatus.OK
    expected = alone.logits()[0]
    assert np.abs(expected - logits).max() < CLOSE
    second, first = np.sort(expected)[-2:]
    assert expected.argmax() == logits.argmax() or first - second < CLOSE


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def weights(kind: str, kinds_of_models: dict[str, Path]) -> Iterator[LlamaModel]:
    model = LlamaModel.load(ModelConfig(kinds_of_models[kind.removesuffix("-full")]))
    yield model
    model.close()


@pytest.fixture
def alone(weights: LlamaModel) -> Iterator[LlamaContext]:
    """One row, no history, everything in one ubatch."""
    context = weights.new_context(replace(CONFIG, n_slots=1, n_rows=1, n_batch=512, n_ubatch=512))
    yield context
    context.close()


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_what_follows_depends_on_the_tokens_alone(
    kind: str, weights: LlamaModel, alone: LlamaContext, unified: bool
) -> None:
    # Many unequal rows in one ubatch: on unified KV that went wrong with windows and states at once.
    n_ubatch = CONFIG.n_batch if kind.startswith("hybrid-window") else CONFIG.n_ubatch
    shape = replace(CONFIG, kv_unified=unified, n_ubatch=n_ubatch, swa_full=kind.endswith("-full"))
    context = weights.new_context(shape)
    done: dict[str, int] = {}
    for seed in (4, 11, 17):
        player = Player(context, alone, random.Random(seed), done=done)
        for row in range(N_ROWS):
            context.apply(Trim(RowId(row), 0))
        for _ in range(N_OPS):
            player.step()
    context.close()
    if kind != "attention":
        assert done["restore"] > 3
    assert min(done["decode"], done["load"], done["save"]) > 3


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_sizes_of_saved_rows_are_known_at_load(weights: LlamaModel, unified: bool) -> None:
    """About: libllama logs the sizes of its pools in hundredths of a MiB, and a cell has 12 bytes of its own."""
    context = weights.new_context(replace(CONFIG, kv_unified=unified))
    traits, n = context.traits, 100
    for at in range(0, n, 20):
        context.decode([Span(RowId(0), at, (7,) * 20)])
    assert len(context.save(RowId(0))) == pytest.approx(traits.bytes_per_row + n * traits.bytes_per_token, rel=0.15)
    if traits.rollback is not Rollback.ANY:
        assert len(context.checkpoint(RowId(0))) == pytest.approx(traits.bytes_per_row, rel=0.15)
    context.close()


def test_greedy_text_varies_and_depends_on_its_first_token(alone: LlamaContext) -> None:
    """Else the law above would say little."""
    prompt = tuple(random.Random(0).randrange(3, 354) for _ in range(24))
    texts = {tuple(greedy(alone, (first, *prompt))) for first in range(5, 350, 30)}
    assert len(texts) > 1
    assert any(len(set(text)) > 1 for text in texts)


def greedy(context: LlamaContext, prompt: tuple[Token, ...], n: int = 12) -> list[Token]:
    context.apply(Trim(RowId(0), 0))
    tokens = list(prompt)
    context.decode([Span(RowId(0), 0, prompt, 1)])
    for _ in range(n):
        tokens.append(int(context.logits()[0].argmax()))
        context.decode([Span(RowId(0), len(tokens) - 1, (tokens[-1],), 1)])
    return tokens[len(prompt) :]
