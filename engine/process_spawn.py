"""One life of an engine process, seen from its parent: start it, speak with it, end it."""

import logging
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import cast

from stemkv.engine.client import EngineUnavailable
from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.process_child import ChildSpec, CoreFactory, child_main
from stemkv.engine.process_wire import (
    Events,
    FromEngine,
    Ready,
    Reply,
    StartFailed,
    Stop,
    ToEngine,
)
from stemkv.engine.request import EngineInfo

logger = logging.getLogger(__name__)


class EngineStartError(EngineUnavailable):
    """The engine could not be started, for a reason other than a setting; says which."""


class EngineProcess:
    """One engine process, from spawn to exit.

    The thread that constructs it must outlive it, for the kernel kills the process when that
    thread ends; the same thread reads its messages. `post`, `stop` and `kill` may be called
    from any thread.
    """

    def __init__(self, config: EngineConfig, core_factory: str | CoreFactory) -> None:
        """Spawn; raises what pickling the factory raises."""
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        spec = ChildSpec(config, core_factory, os.getpid(), logging.getLogger().getEffectiveLevel())
        self._process = context.Process(
            target=child_main, args=(spec, child_end), name="stemkv-engine"
        )
        # the tracker's own start would unblock the signals again
        resource_tracker.ensure_running()
        # The child inherits the mask: a signal to the group waits until the child ignores it.
        blocked = {signal.SIGINT, signal.SIGTERM}
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            # only the child may hold it, or its death would not end the pipe
            child_end.close()
        self._outbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._writer = threading.Thread(
            target=self._write, name="stemkv-engine-writer", daemon=True
        )
        self._writer.start()

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        assert self._process.pid is not None
        return self._process.pid

    def wait_ready(self) -> EngineInfo:
        """Block until the engine is ready; raises ConfigError, EngineStartError."""
        message = self._receive()
        match message:
            case Ready():
                return message.info
            case StartFailed(is_config=True):
                raise ConfigError(message.message)
            case StartFailed():
                raise EngineStartError(f"the engine could not be started: {message.message}")
            case None:
                raise EngineStartError(f"{self.wait_exit()} before it was ready")
        raise AssertionError(f"the engine's first message is {type(message).__name__}")

    def messages(self) -> Iterator[Events | Reply]:
        """Yield what the engine says until it ends."""
        while (message := self._receive()) is not None:
            assert isinstance(message, Events | Reply)
            yield message

    def post(self, message: ToEngine) -> None:
        """Queue a message; never blocks. What a dead engine would have got is dropped."""
        self._outbox.put(message)

    def stop(self) -> None:
        """Ask the engine to end after the step at hand."""
        self._outbox.put(Stop())

    def kill(self) -> None:
        """End the engine at once."""
        self._process.kill()

    def wait_exit(self) -> str:
        """Wait until the process has ended and give back what it held; says how it ended."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        self._outbox.put(None)
        self._writer.join()
        self._connection.close()
        if code < 0:
            return f"the engine process was ended by {signal.Signals(-code).name}"
        return f"the engine process ended with exit code {code}"

    def _receive(self) -> FromEngine | None:
        try:
            return cast(FromEngine, self._connection.recv())
        except (EOFError, ConnectionError):
            return None

    def _write(self) -> None:
        """Send from a thread of its own: the pipe is full while the engine is in a long step."""
        while (message := self._outbox.get()) is not None:
            try:
                self._connection.send(message)
            except OSError:
                return  # the reader's end of file tells of the death
