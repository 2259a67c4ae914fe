"""What a store of tenants last said, for while it is out of reach."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from stemkv.engine.tenants import Tenant

_REMEMBERED_KEYS = 10_000
_ASK_AGAIN_SECONDS = 1.0


class LastKnown:
    """Keys seen lately, with their tenants, and whether there was any tenant. Thread-safe.

    grace_seconds: how long after the last contact the answers hold. A key that is revoked
    elsewhere meanwhile opens its tenant here until then.
    """

    def __init__(self, grace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace_seconds = grace_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._tenants: OrderedDict[bytes, Tenant] = OrderedDict()
        self._empty: bool | None = None
        self._last_contact = -float("inf")
        self._last_failure = -float("inf")

    @property
    def should_ask(self) -> bool:
        """Whether the store is worth asking: not within a second of its last failure.

        A store that does not answer would otherwise hold up every request for its timeout.
        """
        return self._clock() - self._last_failure >= _ASK_AGAIN_SECONDS

    def failed(self) -> None:
        """Note that the store could not be reached."""
        self._last_failure = self._clock()

    def note_tenant(self, digest: bytes, tenant: Tenant | None) -> None:
        """Note whose key this is, None if nobody's."""
        with self._lock:
            self._last_contact = self._clock()
            self._tenants.pop(digest, None)
            if tenant is not None:  # guesses must not push out the keys in use
                self._tenants[digest] = tenant
            if len(self._tenants) > _REMEMBERED_KEYS:
                self._tenants.popitem(last=False)

    def note_empty(self, empty: bool) -> None:
        """Note whether there is no tenant at all."""
        with self._lock:
            self._last_contact = self._clock()
            self._empty = empty

    def tenant(self, digest: bytes) -> Tenant | None:
        """Whose key this was, None if that is not known any more."""
        with self._lock:
            return self._tenants.get(digest) if self._holds else None

    def empty(self) -> bool | None:
        """Whether there was no tenant at all, None if that is not known any more."""
        with self._lock:
            return self._empty if self._holds else None

    @property
    def _holds(self) -> bool:
        return self._clock() - self._last_contact < self.grace_seconds
