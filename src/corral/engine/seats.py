"""Who gets a slot: idle ones in turn, and some are taken from the less urgent or from who is over a fair share."""

from __future__ import annotations

from collections.abc import Sequence

from corral.engine.draft import Draft, Waiting, standing
from corral.engine.fair import account_of
from corral.engine.lineup import Tags, Turn, in_turn, line_up
from corral.engine.plan import Deferral
from corral.engine.radix import common_prefix
from corral.engine.slot import Slot, prefix_key
from corral.ids import CacheKey, SlotId, Token
from corral.tasks import Task

MAX_OVERTAKEN = 8
"""A group gives way to younger ones that name a slot this many times."""


def seat_all(draft: Draft) -> None:
    """Bind those that wait, held tasks too, to slots; those that find none may take one that is not theirs."""
    turns = line_up(draft.view, Tags(draft))
    admit_waiting(draft, turns)
    left = [waiting for waiting, _ in turns if waiting.group[0].id in draft.deferrals]
    if any(_may_be_taken(draft, slot, left) for slot in draft.view.slots):
        take_slots(draft, left)


# --- idle slots ------------------------------------------------------------------------------------------------------


def admit_waiting(draft: Draft, turns: Sequence[Turn]) -> None:
    """Bind waiting groups to idle slots in their turn; a group that names a slot waits for that one only.

    Nobody overtakes the first that finds no slot but those that name one, and only a bounded number of times. One that
    waits for the slot it names keeps nobody up; one that has it and lacks slots for its siblings does.
    """
    idle = [s for s in draft.view.slots if s.is_idle]
    first: Waiting | None = None
    for i, (waiting, urgency) in enumerate(turns):
        reason: Deferral | None = Deferral.NO_SLOT
        if idle and _may_pass(waiting, first):
            reason = _admit(draft, waiting, urgency, idle, turns[i + 1 :])
        if reason is None:
            continue
        if first is None and (not waiting.names_slot or reason is Deferral.SIBLINGS):
            first = waiting
        for task in waiting.group:
            draft.deferrals[task.id] = reason


def _may_pass(waiting: Waiting, first: Waiting | None) -> bool:
    if first is None:
        return True
    return waiting.names_slot and first.n_overtaken < MAX_OVERTAKEN and waiting.priority >= first.priority


def _admit(draft: Draft, waiting: Waiting, urgency: int, idle: list[Slot], later: Sequence[Turn]) -> Deferral | None:
    """Bind one group and take its slots off ``idle``, or say why not."""
    parent = waiting.group[0]
    free = [s for s in idle if s.id == parent.id_slot] if parent.id_slot is not None else idle
    if not free:
        return Deferral.SLOT_BUSY
    if parent.id_slot is None and waiting.n_overtaken < MAX_OVERTAKEN:
        named = {w.group[0].id_slot for w, _ in later if len(w.group) <= len(idle) and _are_peers(w, waiting)}
        free = [s for s in free if s.id not in named]
    if not free:
        return Deferral.NO_SLOT
    if len(waiting.group) > len(idle):
        return Deferral.SIBLINGS
    _seat(draft, waiting, urgency, free, idle)
    return None


def _are_peers(one: Waiting, other: Waiting) -> bool:
    return account_of(one.group[0]) == account_of(other.group[0])


def _seat(draft: Draft, waiting: Waiting, urgency: int, free: list[Slot], idle: list[Slot]) -> None:
    """The first of the group gets one of ``free``, its siblings any of ``idle``; taken slots leave ``idle``."""
    draft.admitted.append(waiting)
    for i, task in enumerate(waiting.group):
        work = waiting.generation
        key, tokens = (work.key, work.tokens) if work else (prefix_key(task), task.prompt)
        slot = choose_slot(idle if i else free, key, tokens, draft.view.config.slot_prompt_similarity)
        idle.remove(slot)
        if waiting.generation is None:
            draft.admit(task, slot.id, urgency, waiting.queued_ms)
        else:
            draft.resume(waiting.generation, slot.id, urgency)


def choose_slot(idle: list[Slot], key: CacheKey, prompt: Sequence[Token], min_similarity: float) -> Slot:
    """The idle slot whose last tokens begin the prompt by more than ``min_similarity`` of it, else the least recent.

    A slot is only a worker: the prefix is found wherever it is. The choice matters to whoever looks at GET /slots, and
    replies tell it: what was left under another ``key`` has no part in it, or a guess could be told right by its slot.
    """
    best, best_n = None, min_similarity * len(prompt)
    for slot in idle:
        memory = slot.memory if min_similarity > 0 else None
        n = common_prefix(memory.tokens, prompt) if memory and memory.owner == key else 0
        if n > best_n:
            best, best_n = slot, n
    return best or min(idle, key=lambda s: (s.last_used, -s.id))


# --- slots of others -------------------------------------------------------------------------------------------------


def _may_be_taken(draft: Draft, slot: Slot, left: Sequence[Waiting]) -> bool:
    """Whether the slot is busy with something that one of ``left`` may perhaps send away."""
    if slot.generation is None or slot.id in _taken(draft):
        return False
    has_served = _has_served(draft, slot)
    task, urgency = slot.work.task, slot.work.urgency
    return any(w.priority > urgency or (has_served and w.group[0].tenant != task.tenant) for w in left)


def _taken(draft: Draft) -> set[SlotId]:
    return {a.slot for a in draft.admissions}


def _has_served(draft: Draft, slot: Slot) -> bool:
    """Whether the slot's task has had what nobody takes from it for the sake of fair shares."""
    n_min, work = draft.view.config.park_min_tokens, slot.work
    return n_min > 0 and slot.is_decoding and work.n_since >= n_min and work.urgency == work.task.priority


def take_slots(draft: Draft, left: Sequence[Waiting]) -> None:
    """Hold tasks of others for those whose priority is higher, or whose tenant would stay behind even with a slot."""
    tags = Tags(draft)
    for waiting in in_turn(left, tags):
        idle = _idle(draft, waiting, tags)
        if idle is not None:
            _take(draft, waiting, idle)
        elif not waiting.names_slot:
            return


def _idle(draft: Draft, waiting: Waiting, tags: Tags) -> list[Slot] | None:
    """Slots for the group, idle ones first; None if there are not enough."""
    taken, parent = _taken(draft), waiting.group[0]
    others = [s for s in draft.view.slots if s.id not in taken]
    idle = [s for s in others if s.is_idle]
    busy = [s for s in others if not s.is_idle and _gives_way(draft, s, parent, tags)]
    busy.sort(key=lambda s: standing(draft.view, s), reverse=True)
    slots = [*idle, *busy]
    if parent.id_slot is not None:
        slots.sort(key=lambda s: s.id != parent.id_slot)
        if not slots or slots[0].id != parent.id_slot:
            return None
    return slots[: len(waiting.group)] if len(slots) >= len(waiting.group) else None


def _gives_way(draft: Draft, slot: Slot, task: Task, tags: Tags) -> bool:
    """``tags`` have the task's account where it will be with this slot: so nobody is parked back and forth."""
    work = slot.work
    if task.priority > work.urgency:
        return True
    if task.priority != work.task.priority or task.tenant == work.task.tenant:
        return False
    return _has_served(draft, slot) and tags.of(work.task) >= tags.of(task)


def _take(draft: Draft, waiting: Waiting, slots: list[Slot]) -> None:
    for slot in slots:
        if not slot.is_idle:
            draft.hold(slot)
    idle = [draft.view.slots[s.id] for s in slots]
    for task in waiting.group:
        draft.deferrals.pop(task.id, None)
    _seat(draft, waiting, waiting.priority, idle[:1] if waiting.names_slot else idle, idle)
