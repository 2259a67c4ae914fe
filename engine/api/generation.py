"""Runs the engine requests of one API call as one stream of events.

A call has one engine request a prompt, each with n choices. Whatever ends the stream early (an
error, a client that left, the service stopping) closes the engine's iterators, which aborts
every request of the call.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from stemkv.engine.api.errors import ApiError, internal, invalid, overloaded, unavailable
from stemkv.engine.api.records import FINISHED, Recorder, RequestRecord
from stemkv.engine.api.service import Service
from stemkv.engine.client import EngineUnavailable
from stemkv.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Request,
    Started,
    TokenLogprob,
    Usage,
)

logger = logging.getLogger(__name__)

# Events that may wait between the engine's iterators and a client that reads slowly.
_BACKLOG = 64

_Queue = asyncio.Queue[tuple[int, Event | Exception]]


@dataclass(frozen=True, slots=True)
class Call:
    """One API call. arrived: `Service.clock` at its arrival. prompt_param: field of the prompt.

    trace_id: the request id that the client and the log know it by.
    """

    id: str
    trace_id: str
    created: int
    arrived: float
    requests: tuple[Request, ...]
    choices_per_prompt: int
    prompt_param: str

    def index(self, prompt: int, choice: int) -> int:
        """Return the choice's index in the answer: all of the first prompt's come first."""
        return prompt * self.choices_per_prompt + choice


@dataclass(slots=True)
class Choice:
    """What one choice has come to."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        """Append what a step added."""
        self.text.append(delta.text)
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


async def collect(service: Service, call: Call) -> tuple[list[Choice], Usage]:
    """Run a call to its end; raises `ApiError`."""
    choices = [Choice() for _ in range(len(call.requests) * call.choices_per_prompt)]
    usages: list[Usage] = []
    async with aclosing(run(service, call)) as events:
        async for prompt, event in events:
            if isinstance(event, Delta):
                choices[call.index(prompt, event.index)].add(event)
            elif isinstance(event, Finished):
                usages.append(event.usage)
    return choices, total(usages)


def total(usages: list[Usage]) -> Usage:
    """Add up the usage of a call's prompts."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )


async def run(
    service: Service, call: Call
) -> AsyncGenerator[tuple[int, Started | Delta | Finished], None]:
    """Yield (prompt's index, event) of all the call's requests, up to the last `Finished`.

    Raises `ApiError` if one of them fails; the others are aborted then.
    """
    queue: _Queue = asyncio.Queue(_BACKLOG)
    tasks = [
        asyncio.create_task(_feed(service, request, index, queue))
        for index, request in enumerate(call.requests)
    ]
    meters = [_Meter(service, call, request) for request in call.requests]
    running = len(tasks)
    try:
        while running:
            index, event = await queue.get()
            meters[index].see(event)
            if isinstance(event, EngineUnavailable):
                raise service.engine_down()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Failed):
                raise failure(service, call, event)
            if isinstance(event, Delta) and event.finish_reason == "abort":
                raise unavailable(
                    "The request was stopped before it was done.",
                    retry_after=service.settings.restart_seconds,
                    code="aborted",
                )
            running -= isinstance(event, Finished)
            yield index, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for meter in meters:
            meter.close()


def failure(service: Service, call: Call, failed: Failed) -> ApiError:
    """Turn the engine's `Failed` into the API's error."""
    if failed.kind == "overloaded":
        return overloaded(failed.message, retry_after=service.settings.retry_after_seconds)
    if failed.kind == "rejected":
        param = call.prompt_param if failed.field == "prompt" else failed.field
        return invalid(failed.message, param=param, code="rejected")
    logger.error("request %s failed in the engine: %s", call.trace_id, failed.message)
    if not service.client.ready:
        return service.engine_down()
    return internal(call.trace_id)


async def _feed(
    service: Service,
    request: Request,
    index: int,
    queue: _Queue,
) -> None:
    """Put a request's events into the queue; the last is a `Finished`, `Failed` or exception."""
    try:
        async with aclosing(service.client.generate(request)) as events:
            async for event in events:
                await queue.put((index, event))
                if isinstance(event, Finished | Failed):
                    return
        raise EngineUnavailable("the engine's events broke off")
    except Exception as error:  # noqa: BLE001 - it is raised again on the other side of the queue
        await queue.put((index, error))


def _record(service: Service, call: Call, request: Request) -> RequestRecord:
    namespace = request.namespace
    return RequestRecord(
        id=request.request_id,
        answer_id=call.id,
        request_id=call.trace_id,
        tenant=namespace.tenant,
        model=service.settings.served_model_name,
        adapter=namespace.adapter,
        salt=namespace.salt,
        submitted=service.wall_clock(),
        prompt_tokens=len(request.prompt),
        cache_read=request.cache_read,
        cache_write=request.cache_write,
    )


class _Meter:
    """Times and counts the events of one engine request."""

    def __init__(self, service: Service, call: Call, request: Request) -> None:
        self._clock = service.clock
        self._metrics = service.metrics
        self._arrived = call.arrived
        self._recorder = Recorder(
            service.requests,
            request,
            _record(service, call, request),
            choices=call.choices_per_prompt,
        )
        self._prompt_tokens = request.prompt.size
        self._last: dict[int, float] = {}
        self._outcome = "aborted"

    def see(self, event: Event | Exception) -> None:
        """Take note of one event at the time it came."""
        now = self._clock()
        match event:
            case Started():
                self._metrics.first_token.observe(now - self._arrived)
                self._metrics.prompt_tokens.inc(self._prompt_tokens)
                self._metrics.cached_tokens.inc(event.cached_tokens)
                self._recorder.started(event, now - self._arrived)
            case Delta():
                self._see_tokens(event.index, len(event.token_ids), now)
                self._recorder.added(event)
            case Finished():
                self._metrics.latency.observe(now - self._arrived)
                self._outcome = FINISHED
            case Failed():
                self._outcome = event.kind
            case EngineUnavailable():
                self._outcome = "unavailable"
            case Exception():
                self._outcome = "internal"

    def close(self) -> None:
        """Count and record how the request ended."""
        self._metrics.outcomes.labels(self._outcome).inc()
        self._recorder.ended(self._outcome, self._clock() - self._arrived)

    def _see_tokens(self, choice: int, tokens: int, now: float) -> None:
        self._metrics.generated_tokens.inc(tokens)
        before = self._last.get(choice)
        if tokens:
            self._last[choice] = now
        if before is not None:
            # Tokens that come together share the time since the last ones.
            for _ in range(tokens):
                self._metrics.inter_token.observe((now - before) / tokens)
