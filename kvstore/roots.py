"""Roots: one for each namespace and generation, where every chain of block keys starts.

Knows which nonces are in force. A flush replaces a nonce, so that the namespaces concerned get
new root keys, and the old roots die with all that hangs on them: at once, in time that grows with
the namespaces, not with the blocks. A dead root keeps its number until its last block is free.

A chain that begins with a public prefix enters its tenant's domain at a root of its own, which is
named by the public tokens too (not by their key, which a hash function may give to others); so the
children of different tenants below one public block hang on different roots, and no path leads from
one to the other.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stemkv.kvstore.accounts import Accounts
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind, scope_name, scope_of
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import root_key
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pool import Pool

PUBLIC = b"public prefixes"
"""Domain of public prefixes; those of tenants are digests, 32 bytes long."""

Identity = tuple[bytes, str, bytes, str, bytes]
"""A namespace without its tenant: domain, adapter, adapter digest, salt; and the public tokens that
its chain goes on from, little-endian int32, b"" at the start of a prompt."""

_RETIRED_KEYS = 4
_SWEEP_AT_LEAST = 256


def identity_of(namespace: Namespace, above: bytes = b"") -> Identity:
    """Return what decides whether two namespaces are one: tenants of a group share all of it."""
    return (namespace.domain, namespace.adapter, namespace.adapter_digest, namespace.salt, above)


@dataclass(slots=True, eq=False)
class Root:
    """One live or dead root. sequences: how many open ones started from it, or went through it.

    above: the public tokens that its chains go on from, little-endian int32. account: number of who
    is charged. died: when (seconds of the store's clock) a flush killed it.
    """

    index: int
    key: BlockKey
    identity: Identity
    account: int
    above: bytes = b""
    sequences: int = 0
    died: float | None = None

    # Prompts that no public prefix leads are the most: theirs are made once.
    way: "Way" = field(init=False)
    path: "Path" = field(init=False)

    def __post_init__(self) -> None:
        """Make the ways that lead from here, and nowhere else."""
        self.way, self.path = Way(self), Path(self)

    @property
    def alive(self) -> bool:
        """Whether it is of the present generation."""
        return self.died is None

    @property
    def reference(self) -> int:
        """How `meta` names this root as a parent."""
        return -2 - self.index


class Way(NamedTuple):
    """A prompt's chain as far as it exists: see `Path`; a root is None if nothing hangs on it.

    key: of the last public block, b"" for none.
    """

    root: Root | None
    public: Root | None = None
    entry: int = 0
    key: bytes = b""


class Path(NamedTuple):
    """Where a chain goes: `entry` blocks from the root `public` (or None), the rest from `root`."""

    root: Root
    public: Root | None = None
    entry: int = 0

    @property
    def alive(self) -> bool:
        """Whether all of it is of the present generation."""
        return self.root.alive and (self.public is None or self.public.alive)


@dataclass(slots=True, eq=False)
class Roots:
    """All roots; the pool knows what hangs on them. dead: those that still have a number."""

    config: StoreConfig
    nonces: dict[str, bytes]
    pool: Pool
    accounts: Accounts
    dead: list[Root] = field(default_factory=list)
    _by_identity: dict[Identity, Root] = field(default_factory=dict)
    _slots: list[Root | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _retired: dict[Identity, deque[tuple[BlockKey, float]]] = field(default_factory=dict)
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

    def key_of(self, namespace: Namespace, entry: bytes = b"") -> BlockKey:
        """Root key of a namespace in its present generation.

        entry: key of the public block that its chains go on from, b"" at the start of prompts.
        """
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
        if entry:
            fields.append((b"entry", entry))
        return root_key(config.secret, fields)

    def find(self, namespace: Namespace, above: bytes = b"") -> Root | None:
        """Return the live root of a namespace, None if nothing was opened in it.

        above: see `Identity`.
        """
        return self._by_identity.get(identity_of(namespace, above))

    def get(self, namespace: Namespace, entry: bytes = b"", above: bytes = b"") -> Root:
        """Return the live root of a namespace, made if need be.

        entry: key of the public block that it goes on from, above: the tokens up to there.
        """
        identity = identity_of(namespace, above)
        root = self._by_identity.get(identity)
        if root is None:
            if len(self._by_identity) >= self._sweep_at:
                self._sweep()
            public = namespace.domain == PUBLIC
            account = self.accounts.operator if public else self.accounts.get(namespace)
            key = self.key_of(namespace, entry)
            root = Root(self._new_index(), key, identity, account, above)
            self._by_identity[identity] = root
            self._slots[root.index] = root
            self.pool.set_root(root.index, root.key, account)
        return root

    def retire(self, flush: Flush) -> list[Root]:
        """Put a flush's nonce in force; return the live roots that must be killed for it."""
        scope = scope_of(flush)
        assert scope is not None
        self.nonces[scope] = flush.nonce
        return [root for root in self._by_identity.values() if _concerns(flush, root.identity)]

    def kill(self, dying: Iterable[Root], now: float) -> list[int]:
        """Let live roots be dead; return how many blocks of each are stale from now on."""
        stale = []
        for root in dying:
            root.died = now
            del self._by_identity[root.identity]
            stale.append(self.pool.kill_root(root.index))
            self.dead.append(root)
            old = self._retired.setdefault(root.identity, deque(maxlen=_RETIRED_KEYS))
            old.appendleft((root.key, now))
        if len(self._retired) > _SWEEP_AT_LEAST * 16:
            self._retired.clear()
        return stale

    def entered_from(self, space: Namespace, public: bytes) -> list[Root]:
        """Return the live roots whose chains go on from public tokens that begin like this.

        space: the public namespace; public: whole blocks, little-endian int32.
        """
        return [
            root
            for (_, *adapter, _, above), root in self._by_identity.items()
            if above.startswith(public) and adapter == [space.adapter, space.adapter_digest]
        ]

    def of_namespace(self, namespace: Namespace) -> list[Root]:
        """Return a namespace's live roots: at the start of prompts, and after public prefixes."""
        own = identity_of(namespace)[:4]
        return [root for identity, root in self._by_identity.items() if identity[:4] == own]

    def free_dead(self) -> None:
        """Give back the numbers of dead roots that have no block and no open sequence left."""
        left = []
        for root in self.dead:
            if root.sequences or self.pool.charged(root.index):
                left.append(root)
            else:
                self._release(root)
        self.dead = left

    def retired_keys(
        self, namespace: Namespace, above: bytes = b""
    ) -> tuple[tuple[BlockKey, float], ...]:
        """Root keys that a namespace had before its last flushes, and when; newest first."""
        return tuple(self._retired.get(identity_of(namespace, above), ()))

    def siblings(self, namespace: Namespace, above: bytes = b"") -> list[Root]:
        """Live roots of the same domain and place with another adapter or salt."""
        own = identity_of(namespace, above)
        return [
            root
            for identity, root in self._by_identity.items()
            if identity[0] == own[0] and identity[4] == above and identity != own
        ]

    def _new_index(self) -> int:
        if self._free:
            return self._free.pop()
        self._slots.append(None)
        return len(self._slots) - 1

    def _sweep(self) -> None:
        """Forget live roots that hold nothing, so that a client's salts cannot pile up."""
        for root in tuple(self._by_identity.values()):
            if not root.sequences and not self.pool.charged(root.index):
                del self._by_identity[root.identity]
                self._release(root)
        self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(self._by_identity))

    def _release(self, root: Root) -> None:
        self._slots[root.index] = None
        self._free.append(root.index)


_NONCE_KINDS = (FlushKind.ALL, FlushKind.TENANT, FlushKind.ADAPTER, FlushKind.SALT)


def _concerns(flush: Flush, identity: Identity) -> bool:
    domain, adapter, _, salt, _ = identity
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
