"""The events of the cache as a stream of server-sent events, for one reader."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from dataclasses import asdict, dataclass

from stemkv.engine.api.admin_calls import ask
from stemkv.engine.api.admin_watch_schemas import EventBody
from stemkv.engine.api.errors import ApiError
from stemkv.engine.api.service import Service
from stemkv.engine.messages import EventPage, GetEvents

logger = logging.getLogger(__name__)

PAGE_EVENTS = 1000
POLL_SECONDS = 0.2
KEEP_ALIVE_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class EventFeed:
    """Reads the engine's events page by page, from number `start` on (-1: from now on).

    What is read and not sent yet is one page: a reader that is slow meets gaps, and costs no
    memory. An engine that is away is waited for; the one that comes counts from 0 again.
    """

    service: Service
    start: int
    _page: EventPage | None = None
    _engine: int = 0
    _restarted: bool = False

    async def open(self) -> None:
        """Read the first page; raises `ApiError` if the engine cannot be asked."""
        self._engine = self.service.client.starts
        await self._read()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream's bytes until the service stops."""
        clock = self.service.clock
        yield b": events follow\n\n"
        silent_since = clock()
        while not self.service.draining:
            page, restarted = self._page, self._restarted
            self._page, self._restarted = None, False
            if restarted:
                yield _event("restart", None, "{}")
            # One write a page: asyncio warns of each further write to a reader that has left.
            if page is not None and (written := b"".join(_written(page))):
                yield written
            if restarted or (page is not None and (page.events or page.missed)):
                silent_since = clock()
            elif clock() - silent_since >= KEEP_ALIVE_SECONDS:
                yield b": still here\n\n"
                silent_since = clock()
            if page is None or len(page.events) < PAGE_EVENTS:
                await asyncio.sleep(POLL_SECONDS)
            reading = asyncio.create_task(self._try_read())
            try:
                # in a long step the engine answers late; the reader hears of us all the same
                while not self.service.draining and not reading.done():
                    await asyncio.wait({reading}, timeout=POLL_SECONDS)
                    if not reading.done() and clock() - silent_since >= KEEP_ALIVE_SECONDS:
                        yield b": still here\n\n"
                        silent_since = clock()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _try_read(self) -> None:
        try:
            await self._read()
        except ApiError as error:
            logger.debug("events cannot be read at the moment: %s", error.body.message)
        except Exception:
            logger.exception("events could not be read")

    async def _read(self) -> None:
        """Read the next page, of the engine that is there now."""
        service = self.service
        starts = service.client.starts
        if starts != self._engine:
            self._begin_anew()
            self._engine = starts
        try:
            page = await ask(service, GetEvents(self.start, PAGE_EVENTS), EventPage)
        except ApiError as error:
            if error.body.param != "start" or self.start <= 0:
                raise
            # No event has come so far: the number is of an engine that was there before.
            self._begin_anew()
            page = await ask(service, GetEvents(self.start, PAGE_EVENTS), EventPage)
        self._page, self.start = page, page.next

    def _begin_anew(self) -> None:
        self.start = 0
        self._restarted = True


def _written(page: EventPage) -> Iterator[bytes]:
    """Yield a page's events; a gap has the number of the last event that was missed."""
    if page.missed:
        first = page.events[0].number if page.events else page.next
        yield _event("gap", first - 1, f'{{"missed":{page.missed}}}')
    for event in page.events:
        yield _event(event.kind, event.number, EventBody(**asdict(event)).model_dump_json())


def _event(kind: str, number: int | None, data: str) -> bytes:
    name = "" if number is None else f"id: {number}\n"
    return f"{name}event: {kind}\ndata: {data}\n\n".encode()
