"""From a drawn token to what a client reads of it, and whether the choice ends with it."""

from collections.abc import Collection
from dataclasses import dataclass

from stemkv.engine.job import Track
from stemkv.engine.request import FinishReason, TokenLogprob
from stemkv.engine.sampler import Sampled
from stemkv.engine.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class TrackOutput:
    """What one token adds to a choice; the fields are `Delta`'s."""

    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None


def accept(track: Track, drawn: Sampled, table: TokenTable, eos: Collection[int]) -> TrackOutput:
    """Append a drawn token to a track and say what came of it.

    A token that ends the text (the model's own, unless ignored, or one of the request's
    `stop_token_ids`) adds no text. Text held back is released at the end, except before a stop
    string.
    """
    params = track.job.request.sampling
    track.outputs.append(drawn.token)
    stop_reason: str | int | None = None
    finish_reason: FinishReason | None = None
    text = ""
    if drawn.token in params.stop_token_ids:
        finish_reason, stop_reason = "stop", drawn.token
    elif drawn.token in eos and not params.ignore_eos:
        finish_reason = "stop"
    else:
        text = track.detokenizer.push(drawn.token)
        if track.detokenizer.stop_reason is not None:
            finish_reason, stop_reason = "stop", track.detokenizer.stop_reason
    if finish_reason is None and len(track.outputs) >= params.max_tokens:
        finish_reason = "length"
    if finish_reason is not None:
        text += track.detokenizer.flush()
    return TrackOutput(text, _logprobs(drawn, table), finish_reason, stop_reason)


def _logprobs(drawn: Sampled, table: TokenTable) -> tuple[TokenLogprob, ...]:
    if drawn.logprob is None:
        return ()
    top = tuple(
        (token, table.token_text(token), table.token_bytes(token), logprob)
        for token, logprob in drawn.top or ()
    )
    token = drawn.token
    return (
        TokenLogprob(token, table.token_text(token), table.token_bytes(token), drawn.logprob, top),
    )
