"""Owns the fake's vocabulary: every byte, a few longer pieces (one of them half a character), and control tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.ids import Token

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>", "<unk>")
PIECES = (
    b"the ",
    b"and ",
    b" of",
    b"ing",
    b"\n\n",
    "é".encode(),
    "日".encode(),
    "🦙".encode(),
    b"\xe2\x82",
    b"\xf0\x9f",
)
"""The last two begin a character and do not end it."""

BOS, EOS, IM_START, IM_END = range(256, 260)
N_VOCAB = 256 + len(CONTROL) + len(PIECES)

_PIECE_OF = tuple(bytes([b]) for b in range(256)) + tuple(c.encode() for c in CONTROL) + PIECES
_TOKEN_OF = {piece: token for token, piece in enumerate(_PIECE_OF)}
_N_LONGEST = max(map(len, _PIECE_OF))
_LONGEST = re.compile(b"|".join(re.escape(p) for p in sorted(PIECES, key=len, reverse=True)) + b"|.", re.DOTALL)
_CONTROL = re.compile("(" + "|".join(re.escape(c) for c in CONTROL) + ")")
_CONTROL_TOKENS = frozenset(range(256, 256 + len(CONTROL)))

LIKELY: tuple[Token, ...] = (
    tuple(b"etaoinshrdlu etaoinshrdlu abcdefghijklmnopqrstuvwxyz ABC0123456789.,:-    \n") * 2
    + tuple(_TOKEN_OF[piece] for piece in PIECES)
    + (0x82, 0xAC, 0xA9, 0xC3, 0xFF)
)
"""What the fake likes to say: mostly text, some pieces, and bytes that only sometimes make a character."""


class SimTokenizer:
    """Implements ``ports.Tokenizer``: longest piece first, else single bytes."""

    @property
    def n_vocab(self) -> int:
        return N_VOCAB

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[Token]:
        tokens: list[Token] = [BOS] if add_special else []
        for i, part in enumerate(_CONTROL.split(text) if parse_special else [text]):
            if i % 2:
                tokens.append(_TOKEN_OF[part.encode()])
            else:
                found = _LONGEST.finditer(part.encode("utf-8", "surrogatepass"))
                tokens.extend(_TOKEN_OF[match.group()] for match in found)
        return tokens

    def n_tokens_at_least(self, text: str) -> int:
        return -(-len(text.encode("utf-8", "surrogatepass")) // _N_LONGEST)

    def piece(self, token: Token, *, special: bool) -> bytes:
        if token in _CONTROL_TOKENS and not special:
            return b""
        return _PIECE_OF[token]

    def detokenize(self, tokens: Sequence[Token], *, special: bool) -> str:
        return b"".join(self.piece(token, special=special) for token in tokens).decode("utf-8", "replace")
