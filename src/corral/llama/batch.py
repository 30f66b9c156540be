"""Owns the memory of one ``llama_batch``: its columns are numpy arrays that are filled by slices."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp.llama_cpp as lib
import numpy as np

from corral.ops import Span


class Batch:
    """Up to ``capacity`` tokens, each belonging to one row."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.n_outputs = 0
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_rows = np.ones(capacity, np.int32)
        self._row = np.zeros(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        # libllama wants a pointer to the list of rows of each token; each list has one element here.
        self._row_pointers = np.uint64(self._row.ctypes.data) + 4 * np.arange(capacity, dtype=np.uint64)
        self.raw = _bind(self._token, self._pos, self._n_rows, self._row_pointers, self._output)

    def fill(self, spans: Sequence[Span]) -> None:
        """Replace the content by these spans, in order. Raises OverflowError if a token does not fit 32 bits."""
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        outputs: list[int] = []
        for span in spans:
            n = len(span.tokens)
            tokens += span.tokens
            positions += range(span.pos0, span.pos0 + n)
            rows += (span.row,) * n
            outputs += (0,) * (n - span.n_outputs) + (1,) * span.n_outputs
        n_tokens = len(tokens)
        self._token[:n_tokens] = tokens
        self._pos[:n_tokens] = positions
        self._row[:n_tokens] = rows
        self._output[:n_tokens] = outputs
        self.n_outputs = sum(outputs)
        self.raw.n_tokens = n_tokens


def _bind(
    token: np.ndarray, pos: np.ndarray, n_rows: np.ndarray, row_pointers: np.ndarray, output: np.ndarray
) -> lib.llama_batch:
    types = dict(lib.llama_batch._fields_)
    columns = {"token": token, "pos": pos, "n_seq_id": n_rows, "seq_id": row_pointers, "logits": output}
    return lib.llama_batch(
        n_tokens=0, embd=None, **{name: column.ctypes.data_as(types[name]) for name, column in columns.items()}
    )
