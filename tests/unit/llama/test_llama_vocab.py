"""A vocabulary's handle while others close it."""

from __future__ import annotations

import threading

import pytest
from tests.api.live import until

from corral.errors import Closed
from corral.llama.vocab import Vocab


def is_closed(vocab: Vocab) -> bool:
    try:
        with vocab.use():
            return False
    except Closed:
        return True


def test_closing_waits_for_those_that_use_it_and_lets_nobody_in() -> None:
    vocab, freed = Vocab("handle"), threading.Event()

    def close() -> None:
        vocab.close()
        freed.set()

    with vocab.use() as handle:
        closer = threading.Thread(target=close)
        closer.start()
        until(lambda: is_closed(vocab), "closed to others")
        assert handle == "handle" and not freed.is_set()
    closer.join(10)
    assert freed.is_set()
    vocab.close()
    with pytest.raises(Closed, match="the model is closed"), vocab.use():
        pass
