"""Block keys: how content becomes 16 bytes.

key = hash(parent key, the block's tokens as little-endian int32, tagged extra). The root's key
takes the place of the parent's in a chain's first block. xxh3_128 is fast and not built against
an adversary; the secret in every root key keeps clients from aiming at collisions, and a hit is
verified anyway. sha256 is there for those who want it.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt
import xxhash

from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.namespace import encode_fields

_LITTLE_ENDIAN = np.dtype("<i4")

KEY_BYTES = 16
TOKEN_BYTES = 4

Digest = Callable[[bytes], bytes]
"""bytes -> 16 bytes."""


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:KEY_BYTES]


HASH_FUNCTIONS: Mapping[str, Digest] = {
    "xxh3_128": xxhash.xxh3_128_digest,
    "sha256": _sha256,
}
"""Name of the setting -> function."""


class PackedKeys(Sequence[BlockKey]):
    """Keys side by side in one run of bytes, cut apart only for those who look at them."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._data) // KEY_BYTES

    def __iter__(self) -> Iterator[BlockKey]:
        """Iterate over the keys."""
        data = self._data
        for at in range(0, len(data), KEY_BYTES):
            yield BlockKey(data[at : at + KEY_BYTES])

    @overload
    def __getitem__(self, index: int) -> BlockKey: ...

    @overload
    def __getitem__(self, index: slice) -> list[BlockKey]: ...

    def __getitem__(self, index: int | slice) -> BlockKey | list[BlockKey]:
        """Return one key, or a list of several."""
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return BlockKey(self._data[numbers * KEY_BYTES : (numbers + 1) * KEY_BYTES])


def root_key(secret: bytes, fields: list[tuple[bytes, bytes]]) -> BlockKey:
    """Key of a namespace's root: HMAC-SHA256 of its tagged fields, cut to 16 bytes."""
    return BlockKey(hmac.new(secret, encode_fields(fields), hashlib.sha256).digest()[:KEY_BYTES])


def chain(digest: Digest, parent: BlockKey, tokens: bytes, block_size: int) -> list[BlockKey]:
    """Return the keys of the full blocks of `tokens` (little-endian int32), in order."""
    width = block_size * TOKEN_BYTES
    keys: list[BlockKey] = []
    for start in range(0, len(tokens) - width + 1, width):
        parent = BlockKey(digest(parent + tokens[start : start + width]))
        keys.append(parent)
    return keys


def as_bytes(tokens: Sequence[int] | npt.NDArray[np.int32]) -> bytes:
    """Return tokens as little-endian int32."""
    if isinstance(tokens, np.ndarray) and tokens.dtype == _LITTLE_ENDIAN:
        return tokens.tobytes()
    return np.asarray(tokens, "<i4").tobytes()
