"""An `EngineClient` that answers every prompt with one given text, one token a step.

It stands in where a test is about the HTTP service and not about the engine, and can be told to
fail, to be slow, and to be away.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stemkv.engine.client import EngineUnavailable
from stemkv.engine.messages import (
    AdminCall,
    AdminReply,
    EngineStats,
    Explanation,
    GetStats,
    TenantStats,
)
from stemkv.engine.request import (
    Delta,
    EngineInfo,
    Event,
    Failed,
    Finished,
    FinishReason,
    Request,
    Started,
    TokenLogprob,
    Usage,
)
from support.byte_letters import byte_of

STATS = EngineStats(
    capacity_blocks=100,
    block_size=16,
    block_bytes=1024,
    free_blocks=60,
    in_use_blocks=10,
    cached_blocks=25,
    stale_blocks=5,
    quarantined_blocks=0,
    tail_blocks=3,
    evicted_blocks=7,
    running=2,
    waiting=1,
    following=0,
    preemptions=4,
    steps=99,
    prefix_cache=True,
    directory="local",
    directory_current=True,
    tenants={
        "acme": TenantStats(
            lookup=200,
            hit_full=96,
            hit_partial=4,
            cached_blocks=25,
            resumed=3,
            resumed_hit=50,
            resumed_computed=7,
        )
    },
    policy_hit_shares={"lru": 0.5, "lrfu-60": 0.625},
)


def engine_info(**changes: Any) -> EngineInfo:
    """Return what the fake says of itself."""
    settings: dict[str, Any] = {
        "model": "fake",
        "fingerprint": "0123456789abcdef",
        "max_model_len": 256,
        "longest_prompt": 255,
        "vocab_size": 259,
        "block_size": 16,
        "capacity_blocks": 100,
        "block_bytes": 1024,
        "device": "cpu",
        "dtype": "float32",
        "kernels": "torch",
        "worker": "worker-1",
    }
    return EngineInfo(**{**settings, **changes})


@dataclass
class FakeEngine:
    """The fake.

    reply: text of every answer. fail: what happens instead of the token after `fail_after`;
    its None goes on.
    step_seconds: time of a step; hold: waited for before each step.

    admin_replies: what each kind of admin call is answered by, or a function that answers it.
    starts: to be counted up by a test that lets the engine end and come back.
    cached: token lists by (domain, salt), of which a prompt reuses its longest common prefix, as
    a store without blocks would. miss: why no more was, as every request is told. submitted,
    aborted: what it was asked.
    """

    tokenizer: Any
    reply: str = "Hello, wörld"
    info_value: EngineInfo = field(default_factory=engine_info)
    ready: bool = True
    fail: Callable[[str], Failed | None] | Exception | None = None
    fail_after: int = 0
    step_seconds: float = 0.0
    hold: asyncio.Event | None = None
    finish: FinishReason | None = None
    submitted: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    admin_calls: list[AdminCall] = field(default_factory=list)
    admin_replies: dict[type, AdminReply | Callable[[Any], AdminReply]] = field(
        default_factory=lambda: {GetStats: STATS}
    )
    starts: int = 1
    cached: dict[tuple[bytes, str], list[list[int]]] = field(default_factory=dict)
    miss: Explanation | None = None
    closed: bool = False
    start_error: Exception | None = None

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself."""
        if not self.ready:
            raise EngineUnavailable("away")
        return self.info_value

    async def start(self) -> None:
        """Become ready, or fail as told."""
        if self.start_error is not None:
            raise self.start_error
        self.ready = True

    async def close(self) -> None:
        """End whatever runs with an error."""
        self.closed = True
        self.ready = False

    async def admin(self, call: AdminCall) -> AdminReply:
        """Give the reply that the test has laid out for this kind of call."""
        if not self.ready:
            raise EngineUnavailable("away")
        self.admin_calls.append(call)
        reply = self.admin_replies[type(call)]
        return reply(call) if callable(reply) else reply

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Yield the reply's tokens for each choice, all choices in step."""
        if not self.ready:
            raise EngineUnavailable("away")
        self.submitted.append(request)
        ended = False
        try:
            async for event in self._events(request):
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            if not ended:
                self.aborted.append(request.request_id)

    async def _events(self, request: Request) -> AsyncGenerator[Event, None]:
        sampling = request.sampling
        ids = self.tokenizer.encode(self.reply, add_special_tokens=False)
        wanted = min(sampling.max_tokens, len(ids))
        cached = self._cached_tokens(request)
        shown = 0
        for step in range(wanted):
            await self._pass_time()
            if self.closed:
                yield Failed(request.request_id, "internal", "the engine was closed")
                return
            if self.fail is not None and step == self.fail_after:
                if isinstance(self.fail, Exception):
                    raise self.fail
                failed = self.fail(request.request_id)
                if failed is not None:
                    yield failed
                    return
            if step == 0:
                yield Started(request.request_id, cached, self.miss)
            text = self.tokenizer.decode(ids[: step + 1])
            text = text.removesuffix("\ufffd")  # half a character is held back
            last = step == wanted - 1
            for choice in range(sampling.n):
                yield Delta(
                    request.request_id,
                    choice,
                    text[shown:],
                    (ids[step],),
                    self._logprobs(ids[step], sampling.logprobs),
                    self._reason(wanted, len(ids)) if last else None,
                )
            shown = len(text)
        usage = Usage(request.prompt.size, wanted * sampling.n, cached)
        yield Finished(request.request_id, usage)

    def _reason(self, wanted: int, whole: int) -> FinishReason:
        return self.finish or ("length" if wanted < whole else "stop")

    async def _pass_time(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        await asyncio.sleep(self.step_seconds)

    def _logprobs(self, token: int, wanted: int | None) -> tuple[TokenLogprob, ...]:
        if wanted is None:
            return ()
        rivals = [(token + rival) % 256 for rival in range(wanted)]
        top = tuple(
            (rival, *self._spelled(rival), -0.5 - rank if rank else -0.5)
            for rank, rival in enumerate(rivals)
        )
        return (TokenLogprob(token, *self._spelled(token), -0.5, top),)

    def _spelled(self, token: int) -> tuple[str, bytes]:
        raw = byte_of(self.tokenizer.convert_ids_to_tokens(token))
        return raw.decode(errors="replace"), raw

    def _cached_tokens(self, request: Request) -> int:
        key = (request.namespace.domain, request.namespace.salt)
        prompt = request.prompt.tolist()
        best = 0
        for known in self.cached.get(key, []) if request.cache_read else []:
            same = np.equal(known[: len(prompt)], prompt[: len(known)])
            best = max(best, int(np.argmin(np.append(same, False))))
        if request.cache_write:
            self.cached.setdefault(key, []).append(prompt)
        return min(best, len(prompt) - 1)
