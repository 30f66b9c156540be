"""The life of a task in a slot: admitted, begun, computed, token by token, to its end. Each move says its event."""

from __future__ import annotations

from collections.abc import Sequence

from corral.engine.adapted import marked, marked_token
from corral.engine.books import Books
from corral.engine.draft import Waiting
from corral.engine.ledger import Lease
from corral.engine.plan import Admission
from corral.engine.shift import Cut, can_move, choose_cut, n_kept
from corral.engine.slot import PRIVATE, Generation, Memory, Slot, group_of, inherited_key
from corral.engine.state import SlotState
from corral.engine.text import Piece, TextStream
from corral.errors import CorralError
from corral.events import Chunk, Event, Failed, Finished, Progress, PromptProbs, Started, StopReason, TokenProbs
from corral.ids import CacheKey, Token
from corral.ports import ModelInfo, Picked, Tokenizer
from corral.tasks import Task


class Life:
    """Writes slots and generations; events collect in ``events`` until the engine takes them."""

    def __init__(self, books: Books, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self.events: list[Event] = []
        self._books = books
        self._eog = info.eog_tokens
        self._add_bos = info.add_bos
        self._tokenizer = tokenizer

    # --- beginnings ------------------------------------------------------------------------------------------------

    def admit(self, admission: Admission, now_ms: float) -> None:
        """The task leaves the queue for an idle slot, or goes on there if it was held."""
        books, slot = self._books, self._books.slots[admission.slot]
        held = next((w for w in books.held if w.group[0].id == admission.task), None)
        if held is not None:
            self._resume(held, slot, admission.urgency, now_ms)
            return
        waiting, task = next((w, t) for w in books.waiting for t in w.group if t.id == admission.task)
        waiting.group = tuple(t for t in waiting.group if t is not task)
        if not waiting.group:
            books.waiting.remove(waiting)
        books.n_admitted += 1
        slot.move(SlotState.STARTED)
        own_key = inherited_key(slot.memory, task, marked(task), books.config.context_shift)
        if own_key is None:
            books.forget_slot(slot)
        slot.last_task, slot.memory = task, None
        slot.generation = Generation(
            task=task,
            serial=books.n_admitted,
            queued_ms=waiting.queued_ms,
            admitted_ms=now_ms,
            tokens=list(marked(task)),
            text=TextStream(task.limits),
            n_prompt=len(task.prompt),
            seed=books.samplers[task.id].seed,
            urgency=admission.urgency,
            rowless_ms=now_ms,
            n_keep=n_kept(task.n_keep, len(task.prompt), self._add_bos, books.n_ctx_slot),
            own_key=own_key,
            prompt_probs=self._prompt_probs(task),
        )
        books.shares.admitted(task, now_ms)

    def _prompt_probs(self, task: Task) -> dict[int, TokenProbs]:
        """Those of its siblings, too: whichever computes a part of their prompt, all show it."""
        mates = (w for w in self._books.generations() if w.group == group_of(task))
        return next((w.prompt_probs for w in mates), {})

    def _resume(self, held: Waiting, slot: Slot, urgency: int, now_ms: float) -> None:
        work = held.generation
        assert work is not None
        self._books.held.remove(held)
        self._books.forget_slot(slot)
        slot.move(SlotState.PARKED)
        slot.generation, slot.last_task = work, work.task
        work.urgency, work.n_start, work.rowless_ms = urgency, work.n_decoded, now_ms
        self._books.shares.admitted(work.task, now_ms)

    def begin(self, slot: Slot, lease: Lease, n_reused: int, now_ms: float) -> None:
        """The slot has a row that holds the first ``n_reused`` tokens."""
        work = slot.work
        slot.lease, work.computed, work.n_start = lease, n_reused, work.n_decoded
        # Who passed others by waiting is not parked for them at once.
        aged = work.urgency + int((now_ms - work.rowless_ms) / self._books.config.priority_age_ms)
        others = (s.work.urgency for s in self._books.slots if s.generation)
        work.urgency = max(work.urgency, min(aged, max(others)))
        self._note_own_key(work, self._books.ledger.own_key(lease.row))
        slot.move(SlotState.PROCESSING_PROMPT)
        if work.n_decoded and work.n_pending == 1:  # parked and nothing was lost, or a sibling forked from its parent
            slot.move(SlotState.DONE_PROMPT)
            slot.move(SlotState.GENERATING)
        if work.n_cached < 0:
            work.n_cached = n_reused
            self._start(slot, now_ms)

    def _start(self, slot: Slot, now_ms: float) -> None:
        work, metrics = slot.work, self._books.metrics
        work.begun_ms = now_ms
        metrics.queue.observe_ms(now_ms - work.queued_ms)
        metrics.add("n_prompt_cached", work.n_cached)
        self.events.append(Started(work.task.id, slot.id, work.n_prompt, work.n_cached))
        if work.task.return_progress:
            self.events.append(Progress(work.task.id, work.n_prompt, work.n_cached, work.n_cached, 0.0))

    def park(self, slot: Slot, now_ms: float) -> None:
        """The slot gives its row back and goes on later where it is."""
        self._give_up_row(slot, now_ms)
        slot.move(SlotState.PARKED)

    def hold(self, slot: Slot, now_ms: float) -> None:
        """The task leaves its slot to another one, and goes on in whichever it gets later."""
        books, work = self._books, slot.work
        memory = self._memory(slot)
        slot.memory = None if memory and memory.is_shifted else memory  # what was moved goes with the task
        self._give_up_row(slot, now_ms)
        books.shares.arrive(work.task, books.queued(), now_ms)
        books.held.append(Waiting((work.task,), now_ms, generation=work))
        self._vacate(slot)

    def _give_up_row(self, slot: Slot, now_ms: float) -> None:
        work = slot.work
        if slot.lease is not None:
            self._release(slot)
            work.rowless_ms = now_ms
        work.computed = 0
        if slot.state is not SlotState.PARKED:
            work.n_parked += 1
            self._books.metrics.add("n_parked")

    def shorten(self, slot: Slot, cut: Cut) -> None:
        """A piece was taken out of the full context. What could not be moved is computed as if it were prompt."""
        work, ledger = slot.work, self._books.ledger
        work.tokens = cut.apply(work.tokens)
        work.truncated = True
        work.n_shifts += 1
        self._books.metrics.add("n_shifted")
        if slot.lease is None:
            return
        work.computed = ledger.length(slot.lease.row)
        self._note_own_key(work, ledger.own_key(slot.lease.row))
        if work.n_pending > 1 and slot.state is SlotState.GENERATING:
            slot.move(SlotState.PROCESSING_PROMPT)

    def _note_own_key(self, work: Generation, own_key: CacheKey | None) -> None:
        """The task's row was moved, or holds what was."""
        if own_key is None or own_key == work.own_key:
            return
        if work.own_key is not None:
            self._books.discarded.append(work.own_key)
        work.own_key = own_key

    # --- computing -------------------------------------------------------------------------------------------------

    def computed(self, slot: Slot, n: int, now_ms: float) -> None:
        """``n`` more of the slot's tokens are in the cache."""
        work = slot.work
        work.computed += n
        if slot.state is not SlotState.PROCESSING_PROMPT:
            return
        n_seen = min(work.computed, work.n_prompt)
        if n_seen > work.n_prompt_seen:
            n_new = max(0, n_seen - max(work.n_prompt_seen, work.n_cached))
            self._books.metrics.add("n_prompt", n_new)
            self._books.shares.charge(work.task, n_new)
            work.n_prompt_seen = n_seen
            if work.task.return_progress:
                time_ms = now_ms - work.begun_ms
                self.events.append(Progress(work.task.id, work.n_prompt, work.n_cached, n_seen, time_ms))
        if work.n_pending == 0:
            self._prompt_done(slot, now_ms)

    def _prompt_done(self, slot: Slot, now_ms: float) -> None:
        work = slot.work
        slot.move(SlotState.DONE_PROMPT)
        self._books.metrics.raise_to("n_tokens_max", len(work.tokens))
        if work.n_decoded:
            return
        self._books.metrics.add("prompt_ms", now_ms - work.begun_ms)
        if work.task.limits.n_predict == 0:
            self._show_prompt(work)
            work.prompt_done_ms = now_ms
            self._finish(slot, StopReason.LIMIT, now_ms)

    def _show_prompt(self, work: Generation) -> None:
        """Before anything else is heard of the task, to those who look on and asked for it."""
        if work.task.n_prompt_probs >= 0 and work.task.stream:
            self.events.append(PromptProbs(work.task.id, _in_order(work.prompt_probs)))

    def share_prompt(self, slot: Slot, parent: Slot) -> None:
        """A sibling shows the prompt figures of the one that computed it, and draws from its logits."""
        work = slot.work
        work.n_prompt_seen = work.n_prompt
        if work.n_cached >= 0:  # it had begun on its own, and was parked
            return
        work.n_cached, work.begun_ms = parent.work.n_cached, parent.work.begun_ms
        self.events.append(Started(work.task.id, slot.id, work.n_prompt, work.n_cached))

    def tokens(self, slot: Slot, picked: Sequence[Picked], now_ms: float) -> None:
        """A token was drawn for the slot, from its own logits or as a sibling from its parent's; others had to follow.

        Those behind one that ends the generation are dropped.
        """
        for i, each in enumerate(picked):
            if slot.generation is not None:
                self._token(slot, each, i + 1 == len(picked), now_ms)

    def _token(self, slot: Slot, picked: Picked, is_last: bool, now_ms: float) -> None:
        """``is_last``: the sampler stands behind this one."""
        work = slot.work
        if slot.state is SlotState.DONE_PROMPT:
            slot.move(SlotState.GENERATING)
        if not work.n_decoded:
            self._show_prompt(work)
        self._time_token(work, now_ms)
        work.tokens.append(marked_token(work.task, picked.token))
        work.generated.append(picked.token)
        self._books.shares.charge(work.task, 1)
        probs = self._probs(work, picked)
        piece = self._push(work, picked, probs)
        is_whole = is_last and self._books.samplers[work.task.id].is_complete
        reason = self._reason(work, picked.token, is_whole, now_ms)
        if piece:
            self._chunk(work, piece)
        if reason is not None:
            self._finish(slot, reason, now_ms)

    def _time_token(self, work: Generation, now_ms: float) -> None:
        metrics = self._books.metrics
        if work.n_decoded:
            metrics.inter_token.observe_ms(now_ms - work.last_token_ms)
        else:
            work.prompt_done_ms = now_ms
            metrics.ttft.observe_ms(now_ms - work.queued_ms)
        work.last_token_ms = now_ms

    def _probs(self, work: Generation, picked: Picked) -> TokenProbs | None:
        if work.task.sampling.n_probs <= 0:
            return None
        probs = TokenProbs(picked.token, picked.p, picked.top, work.task.sampling.post_sampling_probs)
        work.probs.append(probs)
        return probs

    def _push(self, work: Generation, picked: Picked, probs: TokenProbs | None) -> Piece | None:
        task = work.task
        data = self._tokenizer.piece(picked.token, special=task.special or picked.token in task.preserved_tokens)
        return work.text.push(picked.token, data, probs, is_thought=picked.is_thought)

    def _chunk(self, work: Generation, piece: Piece) -> None:
        task = work.task
        is_told = task.timings_per_token or work.text.stopped is not None
        timings = work.timings() if is_told else None
        self.events.append(Chunk(task.id, piece.text, piece.tokens, work.n_decoded, timings, piece.probs))

    def _reason(self, work: Generation, token: Token, is_whole: bool, now_ms: float) -> StopReason | None:
        """Why the generation ends with this token, if it does. ``is_whole``: it is all that a constraint wants.

        An end-of-generation token wins over the limits, and so does a constraint that is held to its end.
        """
        limits, n_decoded = work.task.limits, work.n_decoded
        if work.text.stopped is not None:
            return StopReason.WORD
        if token in self._eog or is_whole:
            return StopReason.EOS
        if len(work.tokens) >= self._books.n_ctx_slot and not self._may_shorten(work):
            work.truncated = True
            return StopReason.LIMIT
        if 0 <= limits.n_predict <= n_decoded or work.text.indent_stop:
            return StopReason.LIMIT
        if 0 <= limits.t_max_predict_ms < now_ms - work.prompt_done_ms and work.text.has_new_line:
            return StopReason.LIMIT
        return None

    def _may_shorten(self, work: Generation) -> bool:
        books = self._books
        if not books.config.context_shift or not can_move(books.traits):
            return False
        return choose_cut(len(work.tokens) - 1, work.n_keep, work.task.n_discard) is not None

    # --- ends ------------------------------------------------------------------------------------------------------

    def _finish(self, slot: Slot, reason: StopReason, now_ms: float) -> None:
        work = slot.work
        self._books.metrics.raise_to("n_tokens_max", len(work.tokens))
        rest = work.text.finish()
        if work.text.stopped is not None:
            reason = StopReason.WORD
        if rest:
            self._chunk(work, rest)
        self.events.append(self._finished(slot, reason))
        self._books.metrics.finished(work.timings(), now_ms - work.queued_ms)
        self._leave(slot)

    def _finished(self, slot: Slot, reason: StopReason) -> Finished:
        work = slot.work
        return Finished(
            task_id=work.task.id,
            slot_id=slot.id,
            reason=reason,
            stopping_word=work.text.stopped or "",
            text=work.text.text,
            tokens=tuple(work.generated),
            probs=tuple(work.probs),
            timings=work.timings(),
            n_tokens_cached=work.computed,
            truncated=work.truncated,
            n_shifts=work.n_shifts,
            has_new_line=work.text.has_new_line,
            seed=work.seed,
            prompt_probs=_in_order(work.prompt_probs),
        )

    def fail(self, slot: Slot, error: CorralError) -> None:
        """The slot's task ends without an answer."""
        self.events.append(Failed(slot.work.task.id, error))
        self._books.metrics.add("n_failed")
        self._leave(slot)

    def cancel(self, slot: Slot) -> None:
        """The slot's task ends and nobody wants to hear of it."""
        self._books.metrics.add("n_cancelled")
        self._leave(slot)

    def drop(self, held: Waiting) -> None:
        """The held task ends and nobody wants to hear of it."""
        assert held.generation is not None
        self._books.metrics.add("n_cancelled")
        self._books.held.remove(held)
        self._forget(held.generation)

    def _leave(self, slot: Slot) -> None:
        work = slot.work
        slot.memory = self._memory(slot)
        if slot.lease is not None:
            self._release(slot)
        self._vacate(slot)
        self._forget(work)

    def _memory(self, slot: Slot) -> Memory | None:
        """What the slot will stand for when it is idle; nothing of what nobody may use again."""
        work, ledger = slot.work, self._books.ledger
        if slot.lease is None or not work.computed or work.key.startswith(PRIVATE):
            return None
        row = slot.lease.row
        if not ledger.is_settled(row):
            return None
        return Memory(ledger.own_key(row) or work.key, work.tokens[: work.computed], work.key)

    def _vacate(self, slot: Slot) -> None:
        self._books.n_released += 1
        slot.last_used = self._books.n_released
        slot.generation = None
        slot.move(SlotState.IDLE)

    def _forget(self, work: Generation) -> None:
        """The task has ended and is nowhere any more."""
        books = self._books
        books.close_sampler(work.task.id)
        if work.key.startswith(PRIVATE) and not any(other.key == work.key for other in books.generations()):
            books.discarded.append(work.key)
        if work.own_key is not None and not any(s.memory and s.memory.key == work.own_key for s in books.slots):
            books.discarded.append(work.own_key)

    def _release(self, slot: Slot) -> None:
        assert slot.lease is not None
        self._books.ledger.release(slot.lease)
        slot.lease = None


def _in_order(probs: dict[int, TokenProbs]) -> tuple[TokenProbs, ...]:
    return tuple(entry for _, entry in sorted(probs.items()))
