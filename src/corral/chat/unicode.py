"""Owns text that can be written as UTF-8: an escape in JSON or Python may stand for half of a surrogate pair."""

from __future__ import annotations


def well_formed(text: str) -> str:
    """The text with halves of pairs joined where both are there, and U+FFFD in place of one alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
