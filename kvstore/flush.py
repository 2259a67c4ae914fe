"""What a flush names, and what it did."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stemkv.kvstore.ids import FlushId, WorkerId


class FlushKind(StrEnum):
    """What a flush is by: the first four renew a nonce in the roots, a prefix walks its subtree."""

    ALL = "all"
    TENANT = "tenant"
    ADAPTER = "adapter"
    SALT = "salt"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Flush:
    """One flush order, as it goes to the store and through the directory to every worker.

    domain: the tenant's domain (TENANT, SALT, PREFIX). adapter: name (ADAPTER, PREFIX).
    salt: (SALT, PREFIX). prefix: little-endian int32 tokens (PREFIX): whatever begins with
    them goes, so the block that holds the last of them goes too.
    nonce: 16 random bytes that replace the scope's nonce in every root key.
    """

    flush_id: FlushId
    kind: FlushKind
    nonce: bytes
    domain: bytes = b""
    adapter: str = ""
    adapter_digest: bytes = b""
    salt: str = ""
    prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What a flush did here, and which workers have said that they did it.

    blocks: how many left the index; in_use: how many of them a running sequence still holds.
    acknowledged: worker -> has it carried the flush out; empty without a shared directory.
    directory_error: why other workers could not be told, None if they could.
    """

    flush_id: FlushId
    blocks: int
    bytes: int
    in_use: int
    blocks_by_tenant: Mapping[str, int] = field(default_factory=dict)
    acknowledged: Mapping[WorkerId, bool] = field(default_factory=dict)
    directory_error: str | None = None


def scope_name(kind: FlushKind, *, domain: bytes, adapter: str, salt: str) -> str | None:
    """Name the nonce that a flush of this kind replaces; None for a prefix, which has none."""
    match kind:
        case FlushKind.ALL:
            return "all"
        case FlushKind.TENANT:
            return f"tenant/{domain.hex()}"
        case FlushKind.ADAPTER:
            return f"adapter/{adapter}"
        case FlushKind.SALT:
            return f"salt/{domain.hex()}/{hashlib.sha256(salt.encode()).hexdigest()}"
        case FlushKind.PREFIX:
            return None


def scope_of(flush: Flush) -> str | None:
    """Name the nonce that this flush replaces; None for a prefix, which has none."""
    return scope_name(flush.kind, domain=flush.domain, adapter=flush.adapter, salt=flush.salt)
