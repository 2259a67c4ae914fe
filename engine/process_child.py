"""The engine's own process: what runs between `spawn` and exit."""

import ctypes
import logging
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn, cast

from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.core_protocol import Core
from stemkv.engine.process_loop import ClientGoneError, Line, run_core
from stemkv.engine.process_wire import FromEngine, Ready, StartFailed, ToEngine

logger = logging.getLogger(__name__)

CoreFactory = Callable[[EngineConfig], Core]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOG_FORMAT = "%(asctime)s %(levelname)s engine[%(process)d] %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a child is started with.

    core_factory: the factory, or where it is ("package.module:name"), so that the parent need
    not import what only the engine needs. parent_pid: who starts it. log_level: of the root.
    """

    config: EngineConfig
    core_factory: str | CoreFactory
    parent_pid: int
    log_level: int


def child_main(spec: ChildSpec, connection: Connection) -> NoReturn:
    """Build the core, say that it is ready, run it; never returns.

    Ends with 0 after `Stop` or when the parent is gone, with 1 when the core cannot be built
    or raises.
    """
    _die_with_parent(spec.parent_pid)
    _leave_signals_to_parent()
    logging.basicConfig(level=spec.log_level, format=_LOG_FORMAT)
    code = _run(spec, _Pipe(connection))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # threads of foreign libraries must not keep a finished engine from ending
    os._exit(code)


def _run(spec: ChildSpec, line: Line) -> int:
    try:
        core = _resolve(spec.core_factory)(spec.config)
    except (Exception, SystemExit) as error:
        is_config = isinstance(error, ConfigError)
        if not is_config:
            logger.exception("the engine could not be started")
        _send_last(line, StartFailed(_describe(error), is_config))
        return 1
    try:
        line.send(Ready(core.info))
        run_core(core, line)
    except ClientGoneError:
        logger.warning("the parent process is gone; the engine ends")
        return _close(core, 0)
    except Exception:  # the parent starts a fresh engine
        logger.exception("the engine failed; its process ends")
        return _close(core, 1)
    return _close(core, 0)


def _close(core: Core, code: int) -> int:
    try:
        core.close()
    except Exception:
        logger.exception("the engine did not close cleanly")
        return 1
    return code


def _resolve(core_factory: str | CoreFactory) -> CoreFactory:
    if isinstance(core_factory, str):
        return cast(CoreFactory, pkgutil.resolve_name(core_factory))
    return core_factory


def _describe(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, ConfigError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _send_last(line: Line, message: FromEngine) -> None:
    try:
        line.send(message)
    except ClientGoneError:
        logger.warning("the parent process is gone; it does not learn why the engine failed")


def _die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    The pipe's end is noticed only between steps; a step can be long, or stuck in a kernel.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        logger.warning("prctl(PR_SET_PDEATHSIG) failed: %s", os.strerror(ctypes.get_errno()))
    if os.getppid() != parent_pid:  # it ended before the kernel was told
        os._exit(1)


def _leave_signals_to_parent() -> None:
    """Ignore what a terminal or a service manager sends to the whole group.

    The parent gets the same signal, drains, and then says `Stop`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


class _Pipe:
    """The child's end of the pipe as the loop's line."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()  # a message is more than one write

    def receive(self, timeout_seconds: float) -> ToEngine | None:
        try:
            if not self._connection.poll(timeout_seconds):
                return None
            return cast(ToEngine, self._connection.recv())
        except (EOFError, ConnectionError) as error:
            raise ClientGoneError from error

    def send(self, message: FromEngine) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except ConnectionError as error:
            raise ClientGoneError from error
