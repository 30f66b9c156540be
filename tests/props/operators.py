"""What operators ask of a player's engine: pins, slots saved, restored and erased; and what they must be told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.props.answers import ADAPTERS, n_alike
from tests.props.histories import Erase, Pin, Restore, Save, Submit, Unpin

from corral.engine import slot_file
from corral.engine.offers import offers
from corral.engine.pins import pinned_prefix
from corral.engine.slot_file import SlotFile
from corral.errors import CorralError, InvalidRequest, NotFound, ServerError, Unavailable
from corral.events import CacheDone, Failed, SlotDone
from corral.ids import CacheKey, SlotId, TaskId, Token
from corral.tasks import CacheAction, SlotAction, TaskKind

if TYPE_CHECKING:
    from tests.props.engine_machine import Player

MAY_BE_TOLD: dict[TaskKind, tuple[tuple[type[CorralError], str], ...]] = {
    TaskKind.SLOT_SAVE: (
        (InvalidRequest, "holds what another API key sent"),
        (InvalidRequest, "was computed with LoRA adapters"),
        (InvalidRequest, "moving cells made what it holds approximate"),
        (ServerError, "are not kept any more"),
        (ServerError, "no room in the KV cache"),
    ),
    TaskKind.SLOT_RESTORE: (
        (InvalidRequest, "holds what another API key sent"),
        (InvalidRequest, "No available space in KV cache"),
    ),
    TaskKind.SLOT_ERASE: ((InvalidRequest, "holds what another API key sent"),),
    TaskKind.CACHE_PIN: (
        (InvalidRequest, "more than half of"),
        (Unavailable, "the prefix is not there"),
        (ServerError, "no room in the KV cache"),
    ),
    TaskKind.CACHE_UNPIN: (),
}
"""Errors that may be the answer although nothing is broken."""


class Operators:
    """One for each player. ``asked``: what was not answered yet."""

    def __init__(self, player: Player) -> None:
        self.asked: dict[TaskId, SlotAction | CacheAction] = {}
        self.pins: dict[str, tuple[CacheKey, tuple[Token, ...]]] = {}
        self.saved: list[SlotDone] = []
        self._player = player

    def ask(self, op: Pin | Unpin | Save | Restore | Erase) -> None:
        player = self._player
        match op:
            case Pin(what):
                self._pin(replace(what, n=1, n_predict=0, cache_prompt=True, n_prompt_probs=-1))
            case Unpin(which):
                if self.pins:
                    name = list(self.pins)[which % len(self.pins)]
                    del self.pins[name]
                    self._act(CacheAction(player.new_id(), TaskKind.CACHE_UNPIN, pin=name, all_tenants=True))
            case Save(slot, tenant):
                self._act(SlotAction(player.new_id(), TaskKind.SLOT_SAVE, SlotId(slot), player.cache_key(tenant)))
            case Erase(slot, tenant):
                self._act(SlotAction(player.new_id(), TaskKind.SLOT_ERASE, SlotId(slot), player.cache_key(tenant)))
            case Restore(slot, tenant, which):
                if self.saved:
                    self._restore(self.saved[which % len(self.saved)], SlotId(slot), player.cache_key(tenant))

    def _restore(self, saved: SlotDone, slot: SlotId, key: CacheKey) -> None:
        parts = saved.tokens, saved.data, saved.checkpoints
        self._act(SlotAction(self._player.new_id(), TaskKind.SLOT_RESTORE, slot, key, *parts))

    def _act(self, action: SlotAction | CacheAction) -> None:
        self.asked[action.id] = action
        self._player.engine.act(action)

    def _pin(self, what: Submit) -> None:
        (task,) = (self._player.open[task].task for task in self._player.submit(what))
        self._act(CacheAction(self._player.new_id(), TaskKind.CACHE_PIN, task=task))

    def forget(self) -> None:
        """The engine is another one."""
        self.asked.clear()
        self.pins.clear()

    def hear(self, event: SlotDone | CacheDone | Failed) -> None:
        action = self.asked.pop(event.task_id)
        match event:
            case Failed(_, error):
                self._check_failure(action, error)
            case SlotDone():
                assert isinstance(action, SlotAction)
                self._slot_done(action, event)
            case CacheDone():
                assert isinstance(action, CacheAction)
                self._cache_done(action, event)

    def _cache_done(self, action: CacheAction, done: CacheDone) -> None:
        if action.kind is TaskKind.CACHE_UNPIN:
            self.pins.pop(done.pin, None)
            return
        assert action.task is not None
        self.pins[done.pin] = pinned_prefix(action.task, ADAPTERS)

    def _slot_done(self, action: SlotAction, done: SlotDone) -> None:
        tokens = [(token, ()) for token in action.tokens if action.kind is TaskKind.SLOT_RESTORE]
        if tokens:
            self._player.kept.setdefault(action.key, []).append(tokens)
        if action.kind is TaskKind.SLOT_SAVE:
            self.saved.append(self._through_a_file(done))
            self._check_saved(done)

    def _through_a_file(self, done: SlotDone) -> SlotDone:
        file, traits = SlotFile(done.tokens, done.data, done.checkpoints), self._player.context.traits
        found = slot_file.unpack(b"".join(slot_file.pack(file, traits.state_version)), traits)
        assert found == file
        return replace(done, tokens=found.tokens, data=found.state, checkpoints=found.checkpoints)

    # --- the referee -----------------------------------------------------------------------------------------------

    def _check_saved(self, done: SlotDone) -> None:
        """It is what somebody said and heard, without adapters."""
        assert done.n_tokens == len(done.tokens)
        known = [seen for lists in self._player.kept.values() for seen in lists]
        n_known = max((n_alike(seen, [(token, ()) for token in done.tokens]) for seen in known), default=0)
        assert n_known == done.n_tokens or self._player.setup.shift, f"{done.n_tokens} saved, {n_known} known"

    def _check_failure(self, action: SlotAction | CacheAction, error: CorralError) -> None:
        if self._player.setup.bad_loads and isinstance(error, ServerError | InvalidRequest | NotFound | Unavailable):
            return
        may_be = MAY_BE_TOLD[action.kind]
        assert any(type(error) is kind and text in str(error) for kind, text in may_be), f"{action.kind}: {error!r}"

    def check(self) -> None:
        """What is pinned is there, for whoever begins with it; a snapshot that the context refuses is the end of it."""
        ledger = self._player.engine.books.ledger
        for name, (key, tokens) in self.pins.items() if not self._player.setup.bad_loads else ():
            found = offers(ledger, key, tokens)
            assert found and found[-1].n == len(tokens), f"pin {name} of {len(tokens)} tokens gives {found[-1:]}"
