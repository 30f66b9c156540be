"""The form of a row's saved state, read from one of this context: it tells other settings, cuts and additions apart.

As in libllama's llama-kv-cache.cpp: of each pool the streams, and where a stream has cells, these, then its tensors,
each with a head of 12 bytes. What a recurrent memory adds does not grow with the row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from corral.llama.shape import CACHE_TYPES
from corral.llama.state import CELL_BYTES, HEAD_BYTES

_U32, _START = struct.Struct("<I"), struct.Struct("<II")
_ROW, _ELEMENT = struct.Struct("<iQ"), struct.Struct("<iII")
_TENSOR_BYTES = _ROW.size
_TYPES = {number: name for name, number in CACHE_TYPES.items()}
_MAX_TYPE, _MAX_CELL = 64, 1 << 24
MAX_STREAMS = 256


@dataclass(frozen=True, slots=True)
class Pool:
    """``is_turned``: V is stored by element, as without flash attention. Of a tensor its head and the bytes of a cell.

    The first half of the tensors is K, the other V.
    """

    is_turned: bool
    tensors: tuple[tuple[bytes, int], ...]

    @property
    def n_layers(self) -> int:
        return len(self.tensors) // 2

    def fault(self, data: bytes, at: int, n: int) -> str:
        """What is said otherwise at ``at``, behind the ``n`` cells of a state."""
        if len(data) >= at + _START.size:
            is_turned, n_layers = _START.unpack_from(data, at)
            if n_layers != self.n_layers:
                return f"it is of another model: {n_layers} layers have cells, here {self.n_layers}"
            if is_turned != self.is_turned:
                return f"it was saved with -fa {_on(not is_turned)}, here it is {_on(not self.is_turned)}"
        at += _START.size
        for i, (head, n_bytes) in enumerate(self.tensors):
            found = data[at : at + _TENSOR_BYTES]
            if len(found) == _TENSOR_BYTES and found != head:
                return _difference(found, head, "-ctk" if i < self.n_layers else "-ctv")
            at += _TENSOR_BYTES + n * n_bytes
        return ""

    def n_bytes(self, n: int) -> int:
        return _START.size + sum(_TENSOR_BYTES + n * n_bytes for _, n_bytes in self.tensors)


@dataclass(frozen=True, slots=True)
class Form:
    """Pools, then ``n_rest`` bytes."""

    pools: tuple[Pool, ...]
    n_rest: int = 0

    def fault(self, data: bytes) -> str:
        """Why ``data`` is no state of this context, or not a whole one; "" if it has its form."""
        at = HEAD_BYTES
        try:
            for pool in self.pools:
                at, n, n_after = _cells(data, at)
                if n and (fault := pool.fault(data, at, n)):
                    return fault
                at += pool.n_bytes(n) + n_after if n else n_after
        except struct.error:
            return f"it is cut short: {len(data)} bytes of the state"
        at += self.n_rest
        if at > len(data):
            return f"it is cut short: {len(data)} of {at} bytes of the state"
        return f"{len(data) - at} bytes were added behind its end" if at < len(data) else ""


def form_of(data: bytes, n_pools: int, *, has_rest: bool) -> Form | None:
    """The form of which ``data`` is, the state of a row with one token; None if it is none that is known here."""
    at, pools = HEAD_BYTES, []
    try:
        for _ in range(n_pools):
            at, n, n_after = _cells(data, at)
            pool = _pool(data, at)
            if n != 1 or pool is None:
                return None
            pools.append(pool)
            at += pool.n_bytes(1) + n_after
    except struct.error:
        return None
    return Form(tuple(pools), len(data) - at) if at == len(data) or (has_rest and at < len(data)) else None


def _cells(data: bytes, at: int) -> tuple[int, int, int]:
    """Where the cells of a pool end, how many they are, and the bytes of the empty streams behind what follows them."""
    (n_streams,) = _U32.unpack_from(data, at)
    at += _U32.size
    for i in range(min(n_streams, MAX_STREAMS)):
        (n,) = _U32.unpack_from(data, at)
        at += _U32.size
        if n:
            return at + n * CELL_BYTES, n, _U32.size * (n_streams - 1 - i)
    return at, 0, 0


def _pool(data: bytes, at: int) -> Pool | None:
    is_turned, n_layers = _START.unpack_from(data, at)
    at += _START.size
    tensors = []
    for i in range(2 * n_layers):
        head = data[at : at + _TENSOR_BYTES]
        kind, n_bytes = _tensor(head, is_element=bool(is_turned) and i >= n_layers)
        if not (0 <= kind < _MAX_TYPE and 0 < n_bytes < _MAX_CELL):
            return None
        tensors.append((head, n_bytes))
        at += _TENSOR_BYTES + n_bytes
    return Pool(bool(is_turned), tuple(tensors))


def _tensor(head: bytes, is_element: bool) -> tuple[int, int]:
    """The type and the bytes of a cell."""
    if not is_element:
        kind, n_bytes = _ROW.unpack(head)
        return kind, n_bytes
    kind, n_element, n_elements = _ELEMENT.unpack(head)
    return kind, n_element * n_elements


def _difference(found: bytes, wanted: bytes, flag: str) -> str:
    (theirs,), (ours,) = struct.unpack_from("<i", found), struct.unpack_from("<i", wanted)
    if theirs == ours:
        return "it is of another model: its layers have other sizes"
    if theirs not in _TYPES:
        return "it is of another model, or damaged: no cache has such a type"
    return f"it was saved with {flag} {_TYPES[theirs]}, here it is {_TYPES.get(ours, ours)}"


def _on(switch: bool) -> str:
    return "on" if switch else "off"
