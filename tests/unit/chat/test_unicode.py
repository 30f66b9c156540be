"""Text that cannot be written as UTF-8 is made text that can."""

from __future__ import annotations

import pytest

from corral.chat.unicode import well_formed


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("llama 🦙 é", "llama 🦙 é"),
        ("\ud83e\udd99", "🦙"),
        ("a\ud83e", "a\ufffd"),
        ("\udd99\ud83e é", "\ufffd\ufffd é"),
    ],
)
def test_halves_of_pairs(text: str, written: str) -> None:
    assert well_formed(text) == written
