"""One client's connection: uvicorn's, with a limit on how long a request's head may take.

Uvicorn bounds how long a connection may idle between requests, and the gate how long a body may
take; without a bound on what comes between, anyone could hold every connection that the process
may have, with a few bytes each and without a key.
"""

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Closes itself when a request's line and headers do not arrive in time."""

    head_timeout_seconds: ClassVar[float] = 30.0

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head from now on."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take what has come, and see whether it was a whole head."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._unwatch_head()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # it is there
            self._unwatch_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_seconds, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
