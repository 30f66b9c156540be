"""Owns the fake model: no weights, a small vocabulary, and a next token decided by what the cache really holds."""

from __future__ import annotations

from dataclasses import dataclass

from corral.config import ContextConfig
from corral.guidance.guide import Guide
from corral.guidance.matcher import GuidedMatcher
from corral.ports import AdapterInfo, ModelInfo
from corral.sim.attend import Head
from corral.sim.clock import CostModel, VirtualClock
from corral.sim.context import Faults, SimContext
from corral.sim.sampler import SimSampler, literal_tokens
from corral.sim.shape import Kind, MemorySpec, traits_of
from corral.sim.tokenizer import BOS, EOS, IM_END, LIKELY, N_VOCAB, SimTokenizer
from corral.tasks import Constraint, Sampling

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class SimSpec:
    """``seed`` is the fake's weights. ``eos_every``: one step in so many ends the generation, 0 for never.

    ``n_pad``: KV pools are padded up to a multiple of it (libllama: 256). ``kind`` of memory; ``window``: how many of
    the last tokens the layers with a window see, where it has such layers; at least 2.
    """

    seed: int = 0
    eos_every: int = 64
    n_ctx_train: int = 4096
    n_pad: int = 1
    adapters: tuple[AdapterInfo, ...] = ()
    kind: Kind = Kind.ATTENTION
    window: int = 0

    def __post_init__(self) -> None:
        if self.kind.has_window != (self.window >= 2):
            raise ValueError(f"a {self.kind.name} memory cannot have a window of {self.window} tokens")

    @property
    def memory(self) -> MemorySpec:
        return MemorySpec(self.kind, self.window, self.n_ctx_train, self.n_pad)


class SimModel:
    """Implements ``ports.Model``."""

    def __init__(self, spec: SimSpec | None = None) -> None:
        self.spec = spec or SimSpec()
        self.head = Head(N_VOCAB, LIKELY, EOS, self.spec.eos_every)
        self._tokenizer = SimTokenizer()
        self._info = _info(self.spec)
        self._guide = Guide(self._tokenizer, self._info)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def tokenizer(self) -> SimTokenizer:
        return self._tokenizer

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        return self.spec.adapters

    def new_context(
        self,
        config: ContextConfig,
        clock: VirtualClock | None = None,
        *,
        cost: CostModel | None = None,
        faults: Faults | None = None,
    ) -> SimContext:
        """An empty cache of the shape ``config``; ``clock`` is advanced by what each call would cost.

        Raises LoadError for sizes that libllama would refuse.
        """
        return SimContext(
            self.head,
            traits_of(config, self.spec.memory),
            self.spec.kind,
            self.spec.seed,
            clock or VirtualClock(),
            cost or CostModel(),
            faults or Faults(),
        )

    def prepare(self, sampling: Sampling, n: int) -> None:
        if sampling.grammar:
            literal_tokens(sampling.grammar, self._tokenizer)

    def new_sampler(self, sampling: Sampling, seed: int, n_ctx_train: int) -> SimSampler:
        """Raises InvalidRequest for a grammar that is not one literal."""
        forced = literal_tokens(sampling.grammar, self._tokenizer) if sampling.grammar else ()
        return SimSampler(sampling, seed, self._info.eog_tokens, forced)

    def new_matcher(self, constraint: Constraint) -> GuidedMatcher:
        return self._guide.matcher(constraint)

    def close(self) -> None:
        pass


def _info(spec: SimSpec) -> ModelInfo:
    return ModelInfo(
        name="sim",
        path="",
        description="a simulated model: its next token is a hash of what it sees",
        ftype="none",
        n_vocab=N_VOCAB,
        vocab_type=2,
        n_ctx_train=spec.n_ctx_train,
        n_embd=1,
        n_params=0,
        n_bytes=0,
        bos_token=BOS,
        eos_token=EOS,
        add_bos=True,
        eog_tokens=frozenset({EOS, IM_END}),
        chat_template=CHAT_TEMPLATE,
        weights=f"sim {spec.seed}",
        fingerprint=f"sim {spec.seed} {spec.eos_every}",
        meta={"general.name": "sim", "general.architecture": "sim"},
    )
