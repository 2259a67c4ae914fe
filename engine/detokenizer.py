"""Tokens to text, one at a time: whole characters only, stop strings found across token borders.

A continuation's text is what its tokens add to the prompt's text, so the space that a
SentencePiece token begins with is kept after a prompt, and dropped where nothing came before.
"""

import codecs
from collections.abc import Sequence

from stemkv.engine.request import SamplingParams
from stemkv.engine.token_table import TokenTable

# No character is longer in UTF-8; so many prompt tokens may hold the start of one.
_CHARACTER_BYTES = 4
# Decoders that are no plain join of bytes look at neighbours; this many tokens are enough context.
_CONTEXT_TOKENS = 8
# Longest run of tokens held back while it ends in a half character, for such decoders.
_UNFINISHED_TOKENS = 16


class Detokenizer:
    """The text of one sequence's output, incrementally.

    prompt_ids: the tokens before it. Stop strings come from params; where one is completed,
    `stop_reason` names it, the text ends before it, and nothing is emitted from then on. Of
    stop strings that end at the same character, the longest is the one that counts. Special
    tokens add no text if skip_special_tokens. The tokens' text never depends on how it was cut
    into tokens.
    """

    def __init__(
        self,
        table: TokenTable,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        skip_special_tokens: bool = True,
    ) -> None:
        decoder = _ByteDecoder if table.joins_bytes else _WindowDecoder
        self._decoder = decoder(table, prompt_ids, skip_special_tokens)
        self._stops = _StopMatcher(params.stop)

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, None while none has."""
        return self._stops.hit

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain, which may be empty.

        Held back are half characters and whatever may be the beginning of a stop string.
        """
        if self._stops.hit is not None:
            return ""
        return self._stops.feed(self._decoder.push(token_id))

    def flush(self) -> str:
        """Return what was held back: the sequence ends here. Half a character becomes U+FFFD."""
        if self._stops.hit is not None:
            return ""
        return self._stops.feed(self._decoder.flush()) + self._stops.release()


class _ByteDecoder:
    """For tokenizers whose text is their tokens' bytes, joined: constant work a token."""

    def __init__(self, table: TokenTable, prompt_ids: Sequence[int], skip_special: bool) -> None:
        self._table = table
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail: list[bytes] = []
        for token_id in reversed(prompt_ids):
            if piece := self._bytes(int(token_id)):
                tail.append(piece)
            if len(tail) == _CHARACTER_BYTES:
                break
        # A character that the prompt began and the output completes belongs to the output.
        self._utf8.decode(b"".join(reversed(tail)))
        self._strip = 0 if tail else table.leading_spaces_stripped

    def push(self, token_id: int) -> str:
        return self._cut(self._utf8.decode(self._bytes(token_id)))

    def flush(self) -> str:
        return self._cut(self._utf8.decode(b"", final=True))

    def _bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._table.is_special(token_id):
            return b""
        return self._table.token_bytes(token_id)

    def _cut(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class _WindowDecoder:
    """For any other tokenizer: decode a short window with and without the new tokens.

    The window is the tokens of the last emission and those since, so the work a token is bounded.
    """

    def __init__(self, table: TokenTable, prompt_ids: Sequence[int], skip_special: bool) -> None:
        self._table = table
        self._skip_special = skip_special
        kept = (int(i) for i in prompt_ids[-_CONTEXT_TOKENS:] if not self._skips(int(i)))
        self._known = list(kept)
        self._new: list[int] = []

    def push(self, token_id: int) -> str:
        if self._skips(token_id):
            return ""
        self._new.append(token_id)
        text = self._difference()
        if text.endswith("\ufffd") and len(self._new) < _UNFINISHED_TOKENS:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._difference())

    def _difference(self) -> str:
        before = self._table.decode(self._known)
        return self._table.decode(self._known + self._new)[len(before) :]

    def _advance(self, text: str) -> str:
        if self._new:
            self._known, self._new = (self._known + self._new)[-_CONTEXT_TOKENS:], []
        return text

    def _skips(self, token_id: int) -> bool:
        return self._skip_special and self._table.is_special(token_id)


class _StopMatcher:
    """Finds the first stop string to end in a text that arrives in pieces.

    One Knuth-Morris-Pratt automaton a stop string: constant amortised work a character, however
    long a stop string is. A state is how many of its characters the text now ends with.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit: str | None = None
        # Longest first, so that of two that end together the one that begins earlier is found.
        self._stops = sorted((stop for stop in set(stops) if stop), key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""

    def feed(self, text: str) -> str:
        """Add text; return what cannot be part of a stop string any more."""
        if not self._stops:
            return text
        held = self._held + text
        for index, character in enumerate(text):
            self._step(character)
            for stop, state in zip(self._stops, self._states, strict=True):
                if state == len(stop):
                    self.hit = stop
                    self._held = ""
                    return held[: len(held) - len(text) + index + 1 - len(stop)]
        certain = len(held) - max(self._states)
        self._held = held[certain:]
        return held[:certain]

    def release(self) -> str:
        """Return what was held back; the text ends here."""
        held, self._held = ("" if self.hit is not None else self._held), ""
        return held

    def _step(self, character: str) -> None:
        for number, stop in enumerate(self._stops):
            state = self._states[number]
            while state and stop[state] != character:
                state = self._borders[number][state - 1]
            self._states[number] = state + (stop[state] == character)


def _borders(stop: str) -> list[int]:
    """For each prefix of stop, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = borders[length - 1]
        length += stop[length] == stop[index]
        borders[index] = length
    return borders
