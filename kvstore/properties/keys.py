"""Rule 1: what names a block."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from hypothesis import strategies as st

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.namespace import Namespace, domain_of, encode_fields
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.kvstore.xxh3 import MAX_WORDS, MIN_WORDS, xxh3_128

Fields = list[tuple[bytes, bytes]]

FIELDS: st.SearchStrategy[Fields] = st.lists(
    st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=4
)

# Few and short, each a part of another: what a careless encoding would run together.
TEXTS = st.sampled_from(["", "a", "b", "ab", "ba", "a\0", "\0a"]) | st.text(max_size=4)
_BYTES = st.sampled_from([b"", b"a", b"b", b"ab", b"\0"]) | st.binary(max_size=4)

WORDS: st.SearchStrategy[list[int]] = st.lists(
    st.integers(0, 2**64 - 1), min_size=MIN_WORDS, max_size=MAX_WORDS
)

PROMPTS: st.SearchStrategy[list[int]] = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=80)


def encoding_is_injective(one: Fields, other: Fields) -> None:
    """Check that two lists of fields encode to the same bytes only if they are the same."""
    assert (encode_fields(one) == encode_fields(other)) == (one == other)


def encoding_can_be_read_back(one: Fields) -> None:
    """Check that the bytes say where each tag and value ends: no two lists can share them."""
    data, parts = encode_fields(one), []
    while data:
        size = int.from_bytes(data[:4], "little")
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    assert list(zip(parts[::2], parts[1::2], strict=True)) == one


def encoding_holds(one: Fields, other: Fields) -> None:
    """Check both of the above."""
    encoding_is_injective(one, other)
    encoding_can_be_read_back(one)


@dataclass(frozen=True)
class Context:
    """All that a namespace's root key depends on before any flush."""

    secret: bytes
    fingerprint: str
    kv_dtype: str
    hash_function: str
    block_size: int
    domain: bytes
    adapter: str
    adapter_digest: bytes
    salt: str

    def root_key(self, tenant: str) -> BlockKey:
        """Return the key that a new store gives this context."""
        config = StoreConfig(
            capacity_blocks=1,
            block_size=self.block_size,
            max_sequences=1,
            max_tokens=1,
            secret=self.secret,
            fingerprint=self.fingerprint,
            kv_dtype=self.kv_dtype,
            hash_function=self.hash_function,
        )
        namespace = Namespace(tenant, self.domain, self.adapter, self.adapter_digest, self.salt)
        return BlockStore(config, NullDirectory()).roots.key_of(namespace)


_PARTS: dict[str, st.SearchStrategy[Any]] = {
    "secret": _BYTES,
    "fingerprint": TEXTS,
    "kv_dtype": TEXTS,
    "hash_function": st.sampled_from(["xxh3_128", "sha256"]),
    "block_size": st.sampled_from([16, 8, 1, 32]),
    "domain": _BYTES,
    "adapter": TEXTS,
    "adapter_digest": _BYTES,
    "salt": TEXTS,
}

CONTEXTS = st.builds(Context, **_PARTS)
CHANGES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({}, optional=_PARTS)


def root_keys_tell_contexts_apart(context: Context, changes: dict[str, Any]) -> None:
    """Check that contexts have one root key only if they are equal, whoever asks."""
    other = replace(context, **changes)
    same = context.root_key("one") == other.root_key("other")
    assert same == (context == other)


def published_keys_are_the_chain(hash_function: str, block_size: int, prompt: list[int]) -> None:
    """Check that keys of published blocks, compiled or not, are those of hashing plainly."""
    config = StoreConfig(
        capacity_blocks=len(prompt),
        block_size=block_size,
        max_sequences=1,
        max_tokens=len(prompt),
        secret=b"secret",
        hash_function=hash_function,
    )
    directory = RecordingDirectory()
    store = BlockStore(config, directory, lambda: 0.0)
    namespace = Namespace("t", domain_of(b"secret", tenant="t"))
    tokens = np.array(prompt, np.int32)
    above: bytes = store.roots.key_of(namespace)
    expected = []
    for start in range(0, len(prompt) - block_size + 1, block_size):
        words = [token.to_bytes(4, "little") for token in prompt[start : start + block_size]]
        data = above + b"".join(words)
        long = hashlib.sha256(data).digest() if hash_function == "sha256" else None
        above = xxhash.xxh3_128_digest(data) if long is None else long[:16]
        expected.append(above)
    assert list(store.keys_of(namespace, tokens)) == expected
    got = store.admit(namespace, tokens)
    assert isinstance(got, Admission)
    store.take_copies()
    store.commit(got.sequence, len(prompt))
    store.settle()
    assert directory.held == set(expected)


def hash_is_the_packages(words: list[int]) -> None:
    """Check that the hash inside the loops gives what the xxhash package gives."""
    data = np.array(words, np.uint64)
    low, high = xxh3_128(data)
    assert int(high) << 64 | int(low) == xxhash.xxh3_128_intdigest(data.tobytes())
