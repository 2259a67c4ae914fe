"""What each token of a vocabulary is in bytes, whatever kind of tokenizer it belongs to."""

import json
import re
from collections.abc import Sequence
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable:
    """The bytes and text of single tokens. Built once a tokenizer, shared by all sequences.

    Two families of decoders are plain joins of their tokens' bytes and are read exactly:
    byte-level BPE, and SentencePiece style (a mark for the space, <0xNN> for bytes). For others
    `joins_bytes` is False, and a token's text is what it decodes to on its own.

    leading_spaces_stripped: how many spaces at the very beginning of a text the decoder drops.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._special = frozenset(int(i) for i, token in added.items() if token.special)
        steps = _decoder_steps(tokenizer)
        self._byte_level = [step["type"] for step in steps] == ["ByteLevel"]
        self._replaced = _replacements(steps)
        self.joins_bytes = self._byte_level or self._replaced is not None
        self.leading_spaces_stripped = sum(
            step["start"] for step in steps if step["type"] == "Strip"
        )
        self._known: dict[int, bytes] = {}

    def is_special(self, token_id: int) -> bool:
        """Whether the tokenizer counts the token as special (end of text, role marks)."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's bytes, which may be part of a character; b"" for an unknown id."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Return the token's bytes as text, U+FFFD for what is no whole character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the tokenizer's own decoding, special tokens included, nothing tidied up."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _read(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if self._byte_level:
            # A token added to the vocabulary may hold characters outside the alphabet; such a
            # token stands for itself.
            if all(character in _BYTE_OF for character in token):
                return bytes(_BYTE_OF[character] for character in token)
            return str(token).encode()
        if self._replaced is None:
            return self.decode([token_id]).encode()
        for mark, content in self._replaced:
            token = token.replace(mark, content)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return str(token).encode()


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    """Return the decoder of a tokenizers-library tokenizer as its list of steps, [] for others."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return []
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _replacements(steps: list[dict[str, Any]]) -> list[tuple[str, str]] | None:
    """Return the (mark, content) pairs of a SentencePiece-style decoder, None for any other."""
    if "ByteFallback" not in [step["type"] for step in steps]:
        return None
    pairs: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": mark}, "content": content}:
                pairs.append((mark, content))
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "stop": 0}:
                pass
            case _:
                return None
    return pairs


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of byte-level BPE stands for.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, are moved to
    U+0100 and on (GPT-2's published scheme).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
