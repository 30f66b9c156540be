"""Prompts: random common words, the same for the same seed and labels on every machine."""

from __future__ import annotations

import random

_LIST = (
    "river stone bridge garden window table letter paper music color light shadow winter summer spring market "
    "street corner station train ticket journey mountain valley forest island ocean harbor boat captain soldier "
    "farmer doctor writer painter singer dancer player winner master friend brother sister mother father uncle "
    "child baby horse dog cat bird fish tree flower grass field road path wall floor roof kitchen bedroom bottle "
    "glass cup plate knife bread cheese butter sugar salt pepper coffee tea milk water wine fire smoke wind rain "
    "snow cloud storm sun moon star planet machine engine wheel metal silver gold copper iron wood cotton leather "
    "dress shirt shoe coat hat ring clock minute hour day week month year century story poem novel chapter page "
    "word sentence question answer problem reason result chance danger safety peace war battle victory prize"
)
WORDS = tuple(_LIST.split())


def words(n_words: int, *labels: object) -> str:
    """``n_words`` words, about one token each, drawn by ``labels``: different ones give different texts."""
    draw = random.Random("/".join(map(str, labels)))
    return " ".join(draw.choices(WORDS, k=n_words))
