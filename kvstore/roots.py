"""Roots: one for each namespace and generation, where every chain of block keys starts.

Knows which nonces are in force. A flush replaces a nonce, so that the namespaces concerned get
new root keys, and the old roots die with all that hangs on them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind, scope_name, scope_of
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import root_key
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pool import Pool

Identity = tuple[bytes, str, bytes, str]
"""A namespace without its tenant: domain, adapter, adapter digest, salt."""

_RETIRED_KEYS = 4
_SWEEP_AT_LEAST = 256


def identity_of(namespace: Namespace) -> Identity:
    """Return what decides whether two namespaces are one: tenants of a group share all of it."""
    return (namespace.domain, namespace.adapter, namespace.adapter_digest, namespace.salt)


@dataclass(slots=True, eq=False)
class Root:
    """One live or dead root. sequences: how many open ones started from it."""

    index: int
    key: BlockKey
    identity: Identity
    sequences: int = 0
    alive: bool = True

    @property
    def reference(self) -> int:
        """How `meta` names this root as a parent."""
        return -2 - self.index


@dataclass(slots=True, eq=False)
class Roots:
    """All roots; the pool knows what hangs on each of them."""

    config: StoreConfig
    nonces: dict[str, bytes]
    pool: Pool
    _by_identity: dict[Identity, Root] = field(default_factory=dict)
    _slots: list[Root | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _retired: dict[Identity, deque[BlockKey]] = field(default_factory=dict)
    _sweep_at: int = _SWEEP_AT_LEAST

    def __iter__(self) -> Iterator[Root]:
        """Iterate over the live roots."""
        return iter(tuple(self._by_identity.values()))

    def __getitem__(self, index: int) -> Root:
        """Return a root by its number, dead ones with open sequences included."""
        root = self._slots[index]
        assert root is not None
        return root

    def __len__(self) -> int:
        """How many roots are alive."""
        return len(self._by_identity)

    def key_of(self, namespace: Namespace) -> BlockKey:
        """Root key of a namespace in its present generation."""
        config = self.config
        scopes = [
            scope_name(
                kind,
                domain=namespace.domain,
                adapter=namespace.adapter,
                salt=namespace.salt,
            )
            for kind in _NONCE_KINDS
        ]
        fields = [
            (b"format", b"stemkv/root/1"),
            (b"model", config.fingerprint.encode()),
            (b"kv dtype", config.kv_dtype.encode()),
            (b"block size", config.block_size.to_bytes(4, "little")),
            (b"hash", config.hash_function.encode()),
            (b"domain", namespace.domain),
            (b"adapter", namespace.adapter.encode()),
            (b"adapter digest", namespace.adapter_digest),
            (b"salt", namespace.salt.encode()),
            *((b"nonce", self.nonces.get(scope or "", b"")) for scope in scopes),
        ]
        return root_key(config.secret, fields)

    def find(self, namespace: Namespace) -> Root | None:
        """Return the live root of a namespace, None if nothing was opened in it."""
        return self._by_identity.get(identity_of(namespace))

    def get(self, namespace: Namespace) -> Root:
        """Return the live root of a namespace, made if need be."""
        identity = identity_of(namespace)
        root = self._by_identity.get(identity)
        if root is None:
            if len(self._by_identity) >= self._sweep_at:
                self._sweep()
            root = Root(self._new_index(), self.key_of(namespace), identity)
            self._by_identity[identity] = root
            self._slots[root.index] = root
            self.pool.add_root(root.index, root.key)
        return root

    def retire(self, flush: Flush) -> list[Root]:
        """Put a flush's nonce in force; return the live roots that die of it, now dead."""
        scope = scope_of(flush)
        assert scope is not None
        self.nonces[scope] = flush.nonce
        dying = [root for root in self._by_identity.values() if _concerns(flush, root.identity)]
        for root in dying:
            root.alive = False
            del self._by_identity[root.identity]
            old = self._retired.setdefault(root.identity, deque(maxlen=_RETIRED_KEYS))
            old.appendleft(root.key)
        if len(self._retired) > _SWEEP_AT_LEAST * 16:
            self._retired.clear()
        return dying

    def free_dead(self, roots: Iterable[Root]) -> None:
        """Give back the numbers of dead roots that no open sequence started from."""
        for root in roots:
            if not root.alive and not root.sequences and self._slots[root.index] is root:
                self._release(root)

    def retired_keys(self, namespace: Namespace) -> tuple[BlockKey, ...]:
        """Root keys that a namespace had before its last flushes, newest first."""
        return tuple(self._retired.get(identity_of(namespace), ()))

    def siblings(self, namespace: Namespace) -> list[Root]:
        """Live roots of the same domain with another adapter or salt."""
        own = identity_of(namespace)
        return [r for i, r in self._by_identity.items() if i[0] == own[0] and i != own]

    def _new_index(self) -> int:
        if self._free:
            return self._free.pop()
        self._slots.append(None)
        return len(self._slots) - 1

    def _sweep(self) -> None:
        """Forget live roots that hold nothing, so that a client's salts cannot pile up."""
        for root in tuple(self._by_identity.values()):
            if not root.sequences and self.pool.is_bare(root.index):
                del self._by_identity[root.identity]
                self._release(root)
        self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(self._by_identity))

    def _release(self, root: Root) -> None:
        self._slots[root.index] = None
        self._free.append(root.index)


_NONCE_KINDS = (FlushKind.ALL, FlushKind.TENANT, FlushKind.ADAPTER, FlushKind.SALT)


def _concerns(flush: Flush, identity: Identity) -> bool:
    domain, adapter, _, salt = identity
    match flush.kind:
        case FlushKind.ALL:
            return True
        case FlushKind.TENANT:
            return domain == flush.domain
        case FlushKind.ADAPTER:
            return adapter == flush.adapter
        case FlushKind.SALT:
            return domain == flush.domain and salt == flush.salt
        case FlushKind.PREFIX:
            return False
