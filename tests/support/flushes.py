"""Flushes and block keys for tests of the directory."""

import secrets
from collections.abc import Mapping

from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.flush import Flush, FlushKind, scope_of
from stemkv.kvstore.ids import BlockKey, FlushId


def keys(count: int, seed: int = 0) -> list[BlockKey]:
    """Return different block keys, the same ones each time."""
    return [BlockKey((seed << 64 | n).to_bytes(16, "little")) for n in range(count)]


def flush(kind: FlushKind = FlushKind.TENANT, name: str = "a") -> Flush:
    """Return a fresh flush; name tells the tenant, adapter or salt."""
    return Flush(
        flush_id=FlushId(secrets.token_hex(8)),
        kind=kind,
        nonce=secrets.token_bytes(16),
        domain=name.encode().ljust(32, b"\0"),
        adapter=name if kind is FlushKind.ADAPTER else "",
        salt=name if kind is FlushKind.SALT else "",
        prefix=b"\x01\0\0\0" if kind is FlushKind.PREFIX else b"",
    )


class Follower:
    """What a store does with a directory's flushes: its nonces, and how often it went cold."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.nonces: dict[str, bytes] = dict(directory.nonces())
        self.done: list[Flush] = []

    def order(self, order: Flush) -> None:
        """Flush here, then tell the others, as an operator's call does."""
        self._carry_out(order)
        self.directory.expect(order)
        self.directory.announce(order)
        self.directory.acknowledge(order.flush_id)

    def follow(self) -> list[Flush]:
        """Carry out what others ordered."""
        pending = self.directory.pending_flushes()
        for order in pending:
            self._carry_out(order)
            self.directory.acknowledge(order.flush_id)
        return list(pending)

    def _carry_out(self, order: Flush) -> None:
        scope = scope_of(order)
        if scope is not None:
            self.nonces[scope] = order.nonce
        self.done.append(order)


def equal_nonces(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> bool:
    """Whether two stores would give every namespace the same root."""
    return dict(first) == dict(second)
