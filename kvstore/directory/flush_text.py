"""Flushes as text, for the log that all workers read: JSON with a version."""

import json
from typing import Any

from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId

VERSION = 1
NONCE_BYTES = 16


class FlushTextError(ValueError):
    """The text is not a flush that this version can read."""


def encode_flush(flush: Flush) -> str:
    """Write a flush as JSON; bytes are hex."""
    return json.dumps(
        {
            "v": VERSION,
            "id": flush.flush_id,
            "kind": flush.kind.value,
            "nonce": flush.nonce.hex(),
            "domain": flush.domain.hex(),
            "adapter": flush.adapter,
            "adapter_digest": flush.adapter_digest.hex(),
            "salt": flush.salt,
            "prefix": flush.prefix.hex(),
        },
        separators=(",", ":"),
    )


def decode_flush(text: bytes) -> Flush:
    """Read what `encode_flush` wrote; raises FlushTextError on anything else."""
    try:
        fields: Any = json.loads(text)
        if fields["v"] != VERSION:
            raise FlushTextError(f"version {fields['v']!r} is not {VERSION}")
        flush = Flush(
            flush_id=FlushId(_text(fields["id"])),
            kind=FlushKind(fields["kind"]),
            nonce=bytes.fromhex(fields["nonce"]),
            domain=bytes.fromhex(fields["domain"]),
            adapter=_text(fields["adapter"]),
            adapter_digest=bytes.fromhex(fields["adapter_digest"]),
            salt=_text(fields["salt"]),
            prefix=bytes.fromhex(fields["prefix"]),
        )
    except FlushTextError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise FlushTextError(f"{type(error).__name__}: {error}") from error
    if len(flush.nonce) != NONCE_BYTES:
        raise FlushTextError(f"a nonce of {len(flush.nonce)} bytes")
    return flush


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FlushTextError(f"{value!r} is not text")
    return value
