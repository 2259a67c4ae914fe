"""GPT-2's letters for bytes, which byte-level vocabularies are spelled in."""

import functools


def byte_of(letter: str) -> bytes:
    """Return the byte that a one-letter token stands for; nothing for a special token."""
    return _table().get(letter, b"")


@functools.cache
def _table() -> dict[str, bytes]:
    # Printable bytes stand for themselves, the others in order for letters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(256 + at): bytes([byte]) for at, byte in enumerate(others)}
