"""What a worker holds, and what of it the directory has not been told yet. Does no I/O."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from stemkv.kvstore.ids import BlockKey


@dataclass(frozen=True, slots=True)
class Changes:
    """What to tell the directory next. restart: forget what it was told before."""

    stored: tuple[BlockKey, ...]
    removed: tuple[BlockKey, ...]
    restart: bool


class Holdings:
    """A mirror of the published blocks, and a bounded queue of changes to tell.

    limit_keys: changes that may wait; when there are more they are given up, and everything is
    told anew from the mirror. `record` is called by the engine's thread, the rest by one other.
    """

    def __init__(self, limit_keys: int) -> None:
        self._limit_keys = limit_keys
        self._lock = threading.Lock()
        self._held: set[BlockKey] = set()
        # Only a key's last state matters, so a block that comes and goes takes one place.
        self._changed: dict[BlockKey, bool] = {}
        self._restart = False

    def record(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """Note blocks published, then blocks that left the index."""
        with self._lock:
            self._held.update(stored)
            self._held.difference_update(removed)
            if self._restart:
                return  # all will be told
            for key in stored:
                self._changed[key] = True
            for key in removed:
                self._changed[key] = False
            if len(self._changed) > self._limit_keys:
                self._changed.clear()
                self._restart = True

    def restart(self) -> None:
        """Tell everything anew: the directory has forgotten it, or may have."""
        with self._lock:
            self._changed.clear()
            self._restart = True

    def next_changes(self, limit_keys: int) -> Changes | None:
        """Take out at most so many changes, None if there are none.

        What cannot be told must be followed by `restart`.
        """
        with self._lock:
            restart = self._restart
            if restart:
                self._changed = dict.fromkeys(self._held, True)
                self._restart = False
            elif not self._changed:
                return None
            keys = [self._changed.popitem() for _ in range(min(limit_keys, len(self._changed)))]
        stored = tuple(key for key, is_held in keys if is_held)
        return Changes(stored, tuple(key for key, is_held in keys if not is_held), restart)
