"""What names a block: its key, its namespace's root key, and their encoding."""

import hashlib
import hmac
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from support.stores import (
    ANN,
    BOB,
    CAT,
    DAN,
    SECRET,
    cache,
    directory_of,
    hit,
    make_store,
    tokens,
)

from stemkv.kvstore import matching
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import (
    HASH_FUNCTIONS,
    KEY_BYTES,
    PackedKeys,
    as_bytes,
    chain,
    root_key,
)
from stemkv.kvstore.namespace import Namespace, domain_of, encode_fields
from stemkv.kvstore.properties.keys import (
    FIELDS,
    Fields,
    encoding_can_be_read_back,
    encoding_is_injective,
)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("xxh3_128", b"", "99aa06d3014798d86001c324468d497f"),
        ("sha256", b"abc", "ba7816bf8f01cfea414140de5dae2223"),
    ],
)
def test_hash_functions_give_their_published_values(name: str, data: bytes, expected: str) -> None:
    """Both hash functions are the ones that their names say, cut to 16 bytes."""
    assert HASH_FUNCTIONS[name](data).hex() == expected


def test_chain_hashes_parent_key_then_tokens() -> None:
    """Each key is the hash of the key before it and of little-endian int32 tokens."""
    root = BlockKey(bytes(range(16)))
    data = as_bytes([1, 2, -1, 256, 7])
    first = xxhash.xxh3_128_digest(root + b"\1\0\0\0\2\0\0\0")
    second = xxhash.xxh3_128_digest(first + b"\xff\xff\xff\xff\0\1\0\0")
    assert chain(HASH_FUNCTIONS["xxh3_128"], root, data, 2) == [first, second]
    assert chain(HASH_FUNCTIONS["xxh3_128"], root, data[:4], 2) == []
    digest = hashlib.sha256(root + data[:8]).digest()[:16]
    assert chain(HASH_FUNCTIONS["sha256"], root, data[:8], 2) == [digest]


def test_keys_of_a_store_have_known_values() -> None:
    """The keys of a fixed prompt do not change from one version to the next."""
    keys = {
        name: [k.hex() for k in make_store(hash_function=name).keys_of(ANN, tokens(range(9)))]
        for name in HASH_FUNCTIONS
    }
    assert keys == KNOWN_KEYS


KNOWN_KEYS = {
    "xxh3_128": ["69d456a27482e8727614c9ea6298bf06", "0a4f4dfccbcc2db4c9fcf9e01e81199a"],
    "sha256": ["21e14a16a4cbc9fc2a32ddcb9ea9b312", "c44d43ebfa9c074ac5c7dbec491c3234"],
}


def test_published_blocks_bear_the_keys_that_keys_of_says() -> None:
    """What the directory is told of a prompt is what `keys_of` says, of whole blocks alone."""
    store = make_store()
    got = store.admit(ANN, tokens(range(11)))
    store.commit(got.sequence, 11)
    assert directory_of(store).held == set(store.keys_of(ANN, tokens(range(11))))
    assert len(directory_of(store).held) == 2


def test_domain_is_keyed_by_the_secret() -> None:
    """A domain is HMAC-SHA256 of tagged fields; group and tenant of one name differ."""
    message = encode_fields([(b"stemkv/domain/1", b""), (b"tenant", b"x")])
    expected = hmac.new(SECRET, message, hashlib.sha256).digest()
    assert domain_of(SECRET, tenant="x") == expected
    others = [
        domain_of(b"another secret", tenant="x"),
        domain_of(SECRET, tenant="x", group="x"),
        domain_of(SECRET, tenant="y"),
    ]
    assert len({expected, *others}) == 4
    assert domain_of(SECRET, tenant="a", group="g") == domain_of(SECRET, tenant="b", group="g")


@pytest.mark.parametrize(
    "change",
    [
        {"domain": BOB.domain},
        {"adapter": "x"},
        {"adapter_digest": b"1"},
        {"salt": "s"},
        {"adapter": "s"},
    ],
)
def test_every_field_of_a_namespace_is_in_the_root_key(change: dict[str, object]) -> None:
    """Namespaces that differ in one field have other keys."""
    store = make_store()
    other = replace(ANN, **change)
    assert store.roots.key_of(other) != store.roots.key_of(ANN)


def test_tenants_of_a_group_have_the_same_keys() -> None:
    """The tenant's name is not in the key: its domain is."""
    store = make_store()
    assert store.roots.key_of(CAT) == store.roots.key_of(DAN)


def test_what_a_deployment_agrees_on_is_in_the_root_key() -> None:
    """Model, KV dtype, block size, hash function, secret and nonces each change every key."""
    base = make_store()
    keys = {base.roots.key_of(ANN)}
    for change in (
        {"fingerprint": "m"},
        {"kv_dtype": "m"},
        {"block_size": 5},
        {"hash_function": "sha256"},
        {"secret": b"another secret"},
    ):
        roots = replace(base.roots, config=replace(base.config, **change))
        keys.add(roots.key_of(ANN))
    roots = replace(base.roots, nonces={"all": b"n"})
    keys.add(roots.key_of(ANN))
    assert len(keys) == 7


@given(FIELDS, FIELDS)
def test_encoding_is_injective(one: Fields, other: Fields) -> None:
    """Two lists of fields encode to the same bytes only if they are the same."""
    encoding_is_injective(one, other)


@given(FIELDS)
def test_encoding_can_be_read_back(fields: Fields) -> None:
    """The bytes say where each tag and value ends: so no two lists can share them."""
    encoding_can_be_read_back(fields)


def test_root_key_is_keyed_by_the_secret() -> None:
    """Without the secret nobody can compute a root key."""
    fields = [(b"a", b"b")]
    expected = hmac.new(SECRET, encode_fields(fields), hashlib.sha256).digest()[:16]
    assert root_key(SECRET, fields) == expected
    assert root_key(b"another secret", fields) != expected


def test_a_namespace_cannot_borrow_from_its_neighbour_field() -> None:
    """Moving a character from one field to the next gives another key."""
    store = make_store()
    one = Namespace("t", b"d", adapter="ab", salt="c")
    other = Namespace("t", b"d", adapter="a", salt="bc")
    assert store.roots.key_of(one) != store.roots.key_of(other)


def test_packed_keys_are_a_sequence_of_keys() -> None:
    """They are read by number from both ends, by slice and one by one, as a list of them is."""
    listed = [bytes([n] * KEY_BYTES) for n in range(5)]
    packed = PackedKeys(b"".join(listed))
    assert len(packed) == 5
    assert list(packed) == listed
    assert [packed[n] for n in range(-5, 5)] == listed + listed
    assert packed[1:4] == listed[1:4]
    assert packed[::-2] == listed[::-2]
    for beyond in (5, -6):
        with pytest.raises(IndexError):
            packed[beyond]
    assert list(PackedKeys(b"")) == []


@pytest.mark.parametrize("hash_function", list(HASH_FUNCTIONS))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 251, 252, 253, 254])
def test_loops_make_keys_only_where_they_can(size: int, hash_function: str) -> None:
    """Whole words of what the loops' hash takes are hashed there, and all keys are the same."""
    store = make_store(8, size, max_tokens=4 * size, hash_function=hash_function)
    fits = size in (2, 4, 252) and hash_function == "xxh3_128"
    assert store.matcher.hashes_inside == (fits and matching.COMPILES)
    table = cache(store, range(3 * size))
    assert [store.pool.key(b) for b in table] == store.keys_of(ANN, tokens(range(3 * size)))
    cache(store, [*range(2 * size), *range(size)])
    assert hit(store, range(3 * size)) == (3, 0)
