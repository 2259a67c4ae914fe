"""What may share with what: tenant domain, adapter and cache salt, and the root key of a chain.

Knows nothing of blocks. The encoding of a root is injective: every field is tagged and
length-prefixed, so no two contexts give the same bytes.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

_DOMAIN_TAG = b"stemkv/domain/1"


@dataclass(frozen=True, slots=True)
class Namespace:
    """The context inside which equal prefixes may share blocks.

    tenant: who asks; it owns what it computes (accounting, tails).
    domain: 32 bytes from `domain_of`; equal for all members of one sharing group.
    adapter: name of the LoRA adapter, "" for none; adapter_digest: digest of its weights.
    salt: the client's own subdivision of its domain, "" for none.
    group: name of the sharing group whose domain it is, "" for the tenant's own; for reports alone.
    """

    tenant: str
    domain: bytes
    adapter: str = ""
    adapter_digest: bytes = b""
    salt: str = ""
    group: str = ""


def domain_of(secret: bytes, *, tenant: str, group: str | None = None) -> bytes:
    """Derive the 32-byte domain of a tenant, or of the sharing group that it belongs to.

    HMAC-SHA256 with the deployment's secret: a client that names a tenant, group or salt
    can never produce another domain. A group and a tenant of one name differ.
    """
    kind, name = (b"tenant", tenant) if group is None else (b"group", group)
    message = encode_fields([(_DOMAIN_TAG, b""), (kind, name.encode())])
    return hmac.new(secret, message, hashlib.sha256).digest()


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode (tag, value) pairs so that different lists never give equal bytes."""
    parts: list[bytes] = []
    for tag, value in fields:
        parts += [len(tag).to_bytes(4, "little"), tag, len(value).to_bytes(4, "little"), value]
    return b"".join(parts)
