"""Owns one libllama context: KV cache and forward pass. Checks every call, because libllama aborts on bad ones."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import llama_cpp.llama_cpp as lib
import numpy as np

from corral.config import ContextConfig
from corral.errors import LoadError
from corral.ids import AdapterSet, RowId
from corral.llama import heap, library, state
from corral.llama.adapter import LlamaAdapter, set_adapters
from corral.llama.batch import Batch
from corral.llama.form import Form, form_of
from corral.llama.shape import context_params, read_traits
from corral.ops import Copy, Shift, Span, Trim
from corral.ports import DecodeStatus, MemoryTraits, Rollback

if TYPE_CHECKING:
    from corral.ports import Logits

_STATUS = {0: DecodeStatus.OK, 1: DecodeStatus.NO_ROOM, 2: DecodeStatus.ABORTED, -1: DecodeStatus.INVALID}
_INT_MAX = 2**31 - 1
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_UNCHANGED = (DecodeStatus.NO_ROOM, DecodeStatus.INVALID)
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_byte_pointer = ctypes.POINTER(ctypes.c_uint8)


class LlamaContext:
    """Implements ``ports.Context``. Used by one thread, but for ``request_abort``."""

    def __init__(self, model: Any, config: ContextConfig, adapters: tuple[LlamaAdapter, ...] = ()) -> None:
        """``model`` is libllama's handle and must outlive this; ``adapters`` are all of its own. Raises LoadError."""
        self._adapters = adapters
        self._abort = AbortFlag()
        params = context_params(model, config, self._abort.callback, self._abort.data)
        self._log = library.start()
        with self._log.watch() as said, self._log.collect() as lines:
            self._handle = lib.llama_init_from_model(model, params)
        if not self._handle:
            raise LoadError(f"cannot make a context: {library.reason(lines, 'libllama gave no reason')}")
        self._memory = lib.llama_get_memory(self._handle)
        if not self._memory:
            lib.llama_free(self._handle)
            raise LoadError("cannot make a context: the model keeps no memory of a text, so it cannot generate")
        self._n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self._traits = read_traits(model, self._handle, config, said)
        self._has_states_only = bool(lib.llama_model_is_recurrent(model))
        # With several positions for each token (M-RoPE) a saved cell carries more than its position.
        self._plain_cells = lib.llama_model_rope_type(model) in (-1, 0, 2)
        self._n_outputs_max = self._traits.n_rows + self._traits.n_extra_outputs
        self._batch = Batch(self._traits.n_batch)
        self._carrier = self._traits.n_rows  # the id of the row behind the others, where there is one
        self._ends = [0] * self._traits.n_rows
        self._unsettled: set[RowId] = set()
        self._headless: set[RowId] = set()
        self._form: Form | None = None
        self._n_readable = -1
        self._logits_at = 0
        self._views: dict[int, Logits] = {}
        self._traits = replace(self._traits, state_head=self.save(RowId(0))[: state.HEAD_BYTES])

    @property
    def traits(self) -> MemoryTraits:
        return self._traits

    def apply(self, op: Trim | Copy | Shift) -> bool:
        self._check_open()
        match op:
            case Trim(row, n):
                self._check_prefix(row, n)
                if n != self._ends[row]:
                    self._trim(row, n)
            case Copy(src, dst, n, bare):
                self._check_copy(src, dst, n, bare)
                return self._copy(src, dst, n, bare)
            case Shift(row, keep, discard):
                self._check_shift(row, keep, discard)
                lib.llama_memory_seq_rm(self._memory, row, keep, keep + discard)
                lib.llama_memory_seq_add(self._memory, row, keep + discard, -1, -discard)
                self._ends[row] -= discard
                self._unsettled.add(row)
        return True

    def _copy(self, src: RowId, dst: RowId, n: int, bare: bool) -> bool:
        self._trim(dst, 0)
        if not n:
            return True
        lib.llama_memory_seq_cp(self._memory, src, dst, 0, n)
        self._ends[dst] = n
        if src in self._unsettled:
            self._unsettled.add(dst)
        if bare or (self._traits.whole_copy_only and (n < self._ends[src] or src in self._headless)):
            self._headless.add(dst)  # libllama copies the state at the end, whatever n is
        return bare or self._rehome(dst)

    def _rehome(self, row: RowId) -> bool:
        """Give the row window cells of its own: libllama never reuses one that two rows hold."""
        if not self._traits.own_windows:
            return True
        data = self._partial(row)
        if self._set_partial(row, data):
            return True
        self._trim(row, 0)
        return False

    def use(self, adapters: AdapterSet) -> None:
        self._check_open()
        set_adapters(self._handle, self._adapters, adapters)

    def decode(self, spans: Sequence[Span]) -> DecodeStatus:
        self._check_open()
        self._check_spans(spans)
        self._n_readable = -1
        try:
            self._batch.fill(spans)
        except OverflowError:  # a token beyond 32 bits; smaller bad tokens are found by libllama
            return DecodeStatus.INVALID
        with self._log.collect():  # the status says it all
            status = _STATUS.get(lib.llama_decode(self._handle, self._batch.raw), DecodeStatus.FAILED)
        self._abort.clear()
        if status is DecodeStatus.OK:
            self._n_readable = self._batch.n_outputs
            self._unsettled.clear()
            for span in spans:
                self._ends[span.row] = span.pos0 + len(span.tokens)
        elif status not in _UNCHANGED:
            self._after_failure(spans)
        return status

    def _after_failure(self, spans: Sequence[Span]) -> None:
        """Read back what rows hold. What cannot be trusted is emptied.

        libllama cannot take back states, and it may have moved those of rows that were not in the batch.
        """
        if self._traits.whole_copy_only:
            self._clear()
        for span in spans:
            first, self._ends[span.row] = self.bounds(span.row)
            if first > max(0, span.pos0 - self._traits.window + 1):
                self._trim(span.row, 0)

    def logits(self) -> Logits:
        """Raises ValueError after a decode that failed, and before the first."""
        if self._n_readable < 0:
            raise ValueError("there are no logits: the last decode did not succeed")
        if self._n_readable == 0:
            return np.empty((0, self._n_vocab), np.float32)
        first = library.address(lib.llama_get_logits(self._handle))
        if first != self._logits_at:
            self._logits_at, self._views = first, {}
        view = self._views.get(self._n_readable)
        if view is None:
            values = (ctypes.c_float * (self._n_readable * self._n_vocab)).from_address(first)
            view = np.frombuffer(memoryview(values), np.float32).reshape(self._n_readable, self._n_vocab)
            self._views[self._n_readable] = view
        return view

    def bounds(self, row: RowId) -> tuple[int, int]:
        first, end = self._positions(row)
        return (0 if self._traits.whole_copy_only else first), end

    def _positions(self, row: RowId) -> tuple[int, int]:
        """libllama's own; a state is where the row ends."""
        self._check_row(row)
        end = lib.llama_memory_seq_pos_max(self._memory, row) + 1
        return (lib.llama_memory_seq_pos_min(self._memory, row), end) if end else (0, 0)

    def save(self, row: RowId, start: int = 0) -> bytes:
        """Raises MemoryError if libllama cannot write the state."""
        self._check_whole(row)
        self._check_start(row, start)
        if row in self._unsettled:  # libllama turns K at the next decode; what it would write now has the old angles
            raise ValueError(f"row {row} was shifted and cannot be saved before the next decode")
        if not start:
            return self._state_of(row)
        lib.llama_memory_seq_cp(self._memory, row, self._carrier, start, -1)
        try:
            return self._state_of(self._carrier)
        finally:
            lib.llama_memory_seq_rm(self._memory, self._carrier, -1, -1)

    def _state_of(self, row: int) -> bytes:
        n_bytes = lib.llama_state_seq_get_size(self._handle, row)
        # Written in place while nobody else has seen the object: a second copy of megabytes would cost as much.
        data: bytes = _new_bytes(None, n_bytes)
        if lib.llama_state_seq_get_data(self._handle, _pointer(data), n_bytes, row) != n_bytes:
            raise MemoryError(f"the state of row {row} cannot be saved")
        return data

    def load(self, row: RowId, data: bytes, start: int = 0) -> bool:
        """Bytes of other settings or cut short are found here; damage within them must be found by who stored them."""
        self._check_row(row)
        self._check_start(row, start)
        if not start:
            self._trim(row, 0)
        elif self._ends[row] != start:
            raise ValueError(f"row {row} holds {self._ends[row]} positions, not the {start} before the saved ones")
        target = self._carrier if start else row
        with self._log.collect():
            n_read = int(lib.llama_state_seq_set_data(self._handle, _pointer(data), len(data), target))
        first = lib.llama_memory_seq_pos_min(self._memory, target)
        end = lib.llama_memory_seq_pos_max(self._memory, target) + 1
        # libllama takes positions as they come; those that no row can have show that the bytes are damaged
        loaded = 0 < n_read == len(data) and (start <= first < end < _INT_MAX or (first < 0 and end == 0))
        if start:
            loaded = loaded and first == start
            if loaded:
                lib.llama_memory_seq_cp(self._memory, target, row, -1, -1)
            lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        if loaded:
            self._ends[row] = end
        else:
            self._trim(row, 0)
        return loaded

    def fault(self, data: bytes, n: int) -> str:
        traits = self._traits
        if self._has_states_only:
            told = state.state_fault(data, n, traits.state_head)
        elif not self._plain_cells:
            return "" if data.startswith(traits.state_head) else "it is no saved row"
        else:
            told = state.fault(data, n, traits.n_streams, traits.state_head)
        return told or (self._form.fault(data) if self._form else "")

    def checkpoint(self, row: RowId) -> bytes:
        """Raises MemoryError if libllama cannot write the state."""
        self._check_whole(row)
        self._check_uncuttable(row)
        return self._partial(row)

    def _partial(self, row: RowId) -> bytes:
        n_bytes = lib.llama_state_seq_get_size_ext(self._handle, row, _PARTIAL)
        data: bytes = _new_bytes(None, n_bytes)
        if lib.llama_state_seq_get_data_ext(self._handle, _pointer(data), n_bytes, row, _PARTIAL) != n_bytes:
            raise MemoryError(f"the state of row {row} cannot be saved")
        return data

    def restore(self, row: RowId, n: int, data: bytes) -> bool:
        self._check_row(row)
        self._check_uncuttable(row)
        if not 0 < n <= self._ends[row]:
            raise ValueError(f"row {row} holds {self._ends[row]} positions, not {n}")
        # What was restored must end at n before the rest is cut: then it is a checkpoint of this length.
        restored = self._set_partial(row, data) and self._positions(row)[1] == n
        if not restored or not lib.llama_memory_seq_rm(self._memory, row, n, -1):
            self._trim(row, 0)
            return False
        self._ends[row] = n
        self._headless.discard(row)
        return True

    def _set_partial(self, row: RowId, data: bytes) -> bool:
        with self._log.collect():
            n_read = int(lib.llama_state_seq_set_data_ext(self._handle, _pointer(data), len(data), row, _PARTIAL))
        return 0 < n_read == len(data)

    def warmup(self) -> None:
        """Run one token to fault in weights and allocate buffers. Empties every row."""
        self._check_open()
        self._clear()
        lib.llama_set_warmup(self._handle, True)
        try:
            self.decode((Span(RowId(0), 0, (0,)),))
            lib.llama_synchronize(self._handle)
            self._form = self._read_form()
        finally:
            lib.llama_set_warmup(self._handle, False)
            self._clear()

    def _read_form(self) -> Form | None:
        """Of the states of rows; row 0 holds one token."""
        if not self._plain_cells:
            return None
        n_pools = 0 if self._has_states_only else 2 if self._traits.window else 1
        return form_of(self._state_of(0), n_pools, has_rest=self._traits.whole_copy_only)

    def request_abort(self) -> None:
        """Make the running forward pass, or else the next one, end as ABORTED. From any thread; CPU backends only."""
        self._abort.set()

    def give_back(self) -> None:
        heap.give_back()

    def close(self) -> None:
        """Free the cache. May be called twice."""
        if self._handle:
            lib.llama_free(self._handle)
            self._handle = None
            self._n_readable = -1

    def _clear(self) -> None:
        lib.llama_memory_clear(self._memory, True)
        self._ends = [0] * self._traits.n_rows
        self._unsettled.clear()
        self._headless.clear()
        self._n_readable = -1

    def _trim(self, row: RowId, n: int) -> None:
        if not lib.llama_memory_seq_rm(self._memory, row, n or -1, -1):
            raise ValueError(f"row {row} cannot be cut back to {n}")
        self._ends[row] = n
        if not n:
            self._unsettled.discard(row)
            self._headless.discard(row)

    def _check_open(self) -> None:
        if not self._handle:
            raise ValueError("the context is closed")

    def _check_row(self, row: RowId) -> None:
        self._check_open()
        if not 0 <= row < len(self._ends):
            raise ValueError(f"row {row} is not in 0..{len(self._ends) - 1}")

    def _check_start(self, row: RowId, start: int) -> None:
        if start and not (self._traits.ranges and 0 < start < self._ends[row] + 1):
            raise ValueError(f"row {row} can be saved and loaded only whole, not from {start}")

    def _check_whole(self, row: RowId) -> None:
        self._check_row(row)
        if row in self._headless:
            raise ValueError(f"row {row} is a copy without the state at its end: it can only be restored or emptied")

    def _check_uncuttable(self, row: RowId) -> None:
        if self._traits.rollback is Rollback.ANY:
            raise ValueError(f"row {row} can be cut anywhere: it needs no checkpoint")

    def _check_copy(self, src: RowId, dst: RowId, n: int, bare: bool) -> None:
        self._check_row(dst)
        self._check_range(src, n)
        if not self._traits.shared_cells:
            raise ValueError("rows of split KV cannot share cells")
        if src == dst:
            raise ValueError(f"row {src} cannot be copied onto itself")
        if bare:
            self._check_uncuttable(src)
        elif not self._traits.whole_copy_only:
            self._check_prefix(src, n)

    def _check_shift(self, row: RowId, keep: int, discard: int) -> None:
        """That libllama can do it. That nobody else holds the cells that move is the caller's to know."""
        self._check_row(row)
        if not (self._traits.can_shift and self._traits.rollback is Rollback.ANY):
            raise ValueError(f"cells of row {row} cannot be moved: its memory cannot shift")
        if not (keep >= 0 and discard > 0 and keep + discard < self._ends[row]):
            raise ValueError(f"row {row} holds {self._ends[row]} positions: cannot keep {keep} and drop {discard}")

    def _check_prefix(self, row: RowId, n: int) -> None:
        """That the row can be cut at n."""
        self._check_range(row, n)
        first, end = self.bounds(row) if self._traits.window else (0, self._ends[row])
        if self._traits.can_cut(n, first, end):
            return
        if self._traits.rollback is not Rollback.BOUNDED:
            raise ValueError(f"row {row} can only be kept whole ({end} positions) or dropped, not cut at {n}")
        raise ValueError(f"row {row} has lost positions before {first} and cannot be cut at {n}")

    def _check_range(self, row: RowId, n: int) -> None:
        self._check_row(row)
        if not 0 <= n <= self._ends[row]:
            raise ValueError(f"row {row} holds {self._ends[row]} positions, not {n}")

    def _check_spans(self, spans: Sequence[Span]) -> None:
        n_tokens = n_outputs = 0
        rows = set()
        for span in spans:
            row, n = span.row, len(span.tokens)
            if not 0 <= row < len(self._ends) or row in rows:
                raise ValueError(f"row {row} is named twice or not in 0..{len(self._ends) - 1}")
            if self._headless:
                self._check_whole(row)
            if span.pos0 != self._ends[row]:
                raise ValueError(f"a span of row {row} starts at {span.pos0}, the row ends at {self._ends[row]}")
            if not n or not 0 <= span.n_outputs <= n:
                raise ValueError(f"a span of row {row} has {n} tokens and {span.n_outputs} outputs")
            rows.add(row)
            n_tokens += n
            n_outputs += span.n_outputs
        if not 0 < n_tokens <= self._batch.capacity:
            raise ValueError(f"{n_tokens} tokens in one decode; 1..{self._batch.capacity} are possible")
        if n_outputs > self._n_outputs_max:
            raise ValueError(f"{n_outputs} outputs in one decode; at most {self._n_outputs_max} are possible")


class AbortFlag:
    """A flag that libllama polls between the nodes of a graph without entering Python.

    libc's ``strlen`` is the callback and the flag a C string: "" says go on, one character says stop. A Python
    callback would take the interpreter lock at every node.
    """

    def __init__(self) -> None:
        self._text = (ctypes.c_char * 2)()
        self.data = ctypes.addressof(self._text)
        libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self.callback = ctypes.cast(libc.strlen, lib.ggml_abort_callback)

    def set(self) -> None:
        self._text[0] = b"!"

    def clear(self) -> None:
        self._text[0] = b"\0"


def _pointer(data: bytes) -> Any:
    return ctypes.cast(ctypes.c_char_p(data), _byte_pointer)
