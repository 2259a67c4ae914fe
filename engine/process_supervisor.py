"""Keeps an engine process alive: starts it, listens to it, starts the next one when it dies."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stemkv.engine.process_desk import Post
from stemkv.engine.process_spawn import EngineProcess, EngineStartError
from stemkv.engine.process_wire import Events, Reply
from stemkv.engine.request import EngineInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before a dead engine is started again.

    first_seconds: after the first death; doubles with each further one up to longest_seconds,
    and begins anew once an engine has stayed up for stable_seconds.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 30.0
    stable_seconds: float = 30.0

    def delay_seconds(self, deaths: int) -> float:
        """How long to wait after so many deaths in a row (at least 1)."""
        assert deaths >= 1
        doublings = min(deaths - 1, 62)  # beyond it a float overflows, long after the limit
        return min(self.first_seconds * 2.0**doublings, self.longest_seconds)


class Listener(Protocol):
    """Who is told of the engine; called on the supervisor's thread."""

    def on_ready(self, info: EngineInfo, post: Post) -> None:
        """Note that an engine takes messages."""
        ...

    def on_message(self, message: Events | Reply) -> None:
        """Note what the engine said."""
        ...

    def on_death(self, reason: str) -> None:
        """Note that an engine ended, or could not be started again; another will be tried."""
        ...

    def on_end(self, error: Exception | None) -> None:
        """Note that no engine follows; the error if the very first one could not be started."""
        ...


class Supervisor:
    """One thread that runs engine processes one after another until it is told to end."""

    def __init__(
        self, spawn: Callable[[], EngineProcess], restart: RestartPolicy, listener: Listener
    ) -> None:
        self._spawn = spawn
        self._restart = restart
        self._listener = listener
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards _engine: it may be killed while it is replaced
        self._engine: EngineProcess | None = None
        self._was_ready = False
        self._thread = threading.Thread(
            target=self._run, name="stemkv-engine-supervisor", daemon=True
        )

    def start(self) -> None:
        """Start the thread, and with it the first engine."""
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        with self._lock:
            return None if self._engine is None else self._engine.pid

    def stop(self) -> None:
        """Let the engine finish its step, and start no other. Never blocks."""
        self._closing.set()
        with self._lock:
            if self._engine is not None:
                self._engine.stop()

    def kill(self) -> None:
        """End the engine at once, and start no other. Never blocks."""
        self._closing.set()
        with self._lock:
            if self._engine is not None:
                self._engine.kill()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the last engine is gone; whether it is."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            deaths = 0
            while not self._closing.is_set():
                began = time.monotonic()
                reason = self._live()
                if self._closing.is_set():
                    break
                stayed_up = time.monotonic() - began >= self._restart.stable_seconds
                deaths = 1 if stayed_up else deaths + 1
                delay = self._restart.delay_seconds(deaths)
                logger.error("%s; it is started again in %g s", reason, delay)
                self._listener.on_death(reason)
                self._closing.wait(delay)
        except Exception as cause:  # noqa: BLE001 - handed to who waits for the start
            error = cause
        finally:
            self._listener.on_end(error)

    def _live(self) -> str:
        """Run one engine from spawn to exit; says how it ended.

        Raises what kept the very first one from starting.
        """
        try:
            engine = self._spawn()
        except Exception as error:
            if not self._was_ready:
                raise EngineStartError(
                    f"the engine process could not be spawned: {error}"
                ) from error
            return f"the engine process could not be spawned: {error}"
        with self._lock:
            self._engine = engine
            if self._closing.is_set():
                engine.kill()
        try:
            self._listener.on_ready(engine.wait_ready(), engine.post)
            self._was_ready = True
            for message in engine.messages():
                self._listener.on_message(message)
        except Exception as error:
            engine.kill()
            if not self._was_ready:
                raise
            return str(error)
        finally:
            how = engine.wait_exit()
            with self._lock:
                self._engine = None
        return how
