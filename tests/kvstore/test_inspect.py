"""What an operator sees of the blocks."""

from dataclasses import replace

import pytest
from support.stores import ANN, BOB, cache, flush_of, make_store, open_, run, tokens

from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.inspect import get_block, list_blocks
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import BlockInfo

SALTED = replace(ANN, salt="s")
ADAPTED = replace(BOB, adapter="x", adapter_digest=b"1")


@pytest.fixture
def store() -> BlockStore:
    """Two chains of ann's with a tail, one each with a salt and an adapter, one in use."""
    store = make_store(24)
    cache(store, range(10))
    cache(store, [*range(4), 60, 61, 62, 63])
    cache(store, range(4), SALTED)
    cache(store, range(4), ADAPTED)
    run(store, open_(store, range(8), BOB))
    return store


def seen(blocks: tuple[BlockInfo, ...]) -> list[tuple[object, ...]]:
    """Return what of the blocks the tests compare."""
    return [(b.tenant, b.adapter, b.salt, b.depth, b.tokens, b.state, b.children) for b in blocks]


def test_all_blocks_are_listed_in_order_of_number(store: BlockStore) -> None:
    """Published blocks and tails come with owner, namespace, depth, references and children."""
    page = list_blocks(store)
    assert page.next_cursor is None
    assert seen(page.blocks) == [
        ("ann", "", "", 0, 4, "cached", 2),
        ("ann", "", "", 4, 4, "cached", 1),
        ("ann", "", "", 8, 2, "cached", 0),
        ("ann", "", "", 4, 4, "cached", 0),
        ("ann", "", "s", 0, 4, "cached", 0),
        ("bob", "x", "", 0, 4, "cached", 0),
        ("bob", "", "", 0, 4, "in_use", 1),
        ("bob", "", "", 4, 4, "in_use", 0),
    ]
    keys = [k.hex() for k in store.keys_of(ANN, tokens(range(8)))]
    root, child, tail = page.blocks[:3]
    assert (root.key, root.parent) == (keys[0], None)
    assert (child.key, child.parent) == (keys[1], keys[0])
    assert (tail.key, tail.parent) == (None, keys[1])
    assert [b.references for b in page.blocks] == [0] * 6 + [1, 1]
    assert [b.block for b in page.blocks] == sorted(b.block for b in page.blocks)
    assert {type(getattr(root, n)) for n in ("block", "depth", "tokens", "references")} == {int}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"tenant": "ann"}, 5),
        ({"tenant": "bob"}, 3),
        ({"tenant": "nobody"}, 0),
        ({"adapter": "x"}, 1),
        ({"adapter": ""}, 7),
        ({"salt": "s"}, 1),
        ({"salt": ""}, 7),
        ({"adapter": "x", "salt": "s"}, 0),
        ({"state": "cached"}, 6),
        ({"state": "in_use"}, 2),
        ({"min_references": 1}, 2),
        ({"min_references": 2}, 0),
        ({"tenant": "ann", "salt": "", "state": "cached"}, 4),
    ],
)
def test_filters(store: BlockStore, filters: dict[str, object], expected: int) -> None:
    """Each filter takes out what it does not name, and they add up."""
    assert len(list_blocks(store, **filters).blocks) == expected


@pytest.mark.parametrize("limit", [1, 3, 7, 8, 100])
def test_pages_give_every_block_once(store: BlockStore, limit: int) -> None:
    """Following the cursors one sees the same list, whatever the page's size."""
    found: list[BlockInfo] = []
    cursor = None
    while True:
        page = list_blocks(store, limit=limit, cursor=cursor)
        found += page.blocks
        assert len(page.blocks) <= limit
        if page.next_cursor is None:
            break
        assert len(page.blocks) == limit
        cursor = page.next_cursor
    assert tuple(found) == list_blocks(store).blocks


def test_a_page_with_filters_goes_on_after_its_last_block(store: BlockStore) -> None:
    """The cursor skips what the filters leave out."""
    page = list_blocks(store, tenant="bob", limit=2)
    rest = list_blocks(store, tenant="bob", limit=2, cursor=page.next_cursor)
    assert seen(page.blocks + rest.blocks) == seen(list_blocks(store, tenant="bob").blocks)
    assert rest.next_cursor is None


def test_wrong_arguments_are_named(store: BlockStore) -> None:
    """An unknown state and a limit of nothing are refused."""
    with pytest.raises(ValueError, match="state: 'stale' is not one of cached, in_use"):
        list_blocks(store, state="stale")
    with pytest.raises(ValueError, match="limit: 0"):
        list_blocks(store, limit=0)


def test_one_block_by_its_key(store: BlockStore) -> None:
    """The detail has token ids, the chain of keys down to it, and its children, tails included."""
    keys = [k.hex() for k in store.keys_of(ANN, tokens(range(8)))]
    detail = get_block(store, keys[1])
    assert detail is not None
    assert detail.token_ids == (4, 5, 6, 7)
    assert detail.chain == tuple(keys)
    assert detail.info == list_blocks(store).blocks[1]
    assert detail.children == (list_blocks(store).blocks[2],)
    root = get_block(store, keys[0])
    assert root is not None
    assert root.chain == (keys[0],)
    assert {c.depth for c in root.children} == {4}
    assert len(root.children) == 2
    assert {type(t) for t in detail.token_ids} == {int}


@pytest.mark.parametrize("digits", [8, 9, 15, 16, 31, 32])
def test_a_unique_start_of_a_key_will_do(store: BlockStore, digits: int) -> None:
    """Any start of at least 8 digits finds the block, in either case, odd lengths too."""
    (key,) = (k.hex() for k in store.keys_of(SALTED, tokens(range(4))))
    for text in (key[:digits], key[:digits].upper()):
        detail = get_block(store, text)
        assert detail is not None
        assert detail.info.key == key
    other = key[: digits - 1] + f"{int(key[digits - 1], 16) ^ 1:x}"
    assert get_block(store, other) is None


def test_an_ambiguous_start_is_refused() -> None:
    """If several keys begin so, the answer names what was asked, instead of one of them."""

    def alike(data: bytes) -> bytes:
        return b"\1\2\3\4\5" + bytes([sum(data) % 256]) + bytes(10)

    store = make_store(digest=alike)
    cache(store, range(12))
    with pytest.raises(ValueError, match="'0102030405' is ambiguous: the keys of 3 blocks"):
        get_block(store, "0102030405")
    with pytest.raises(ValueError, match="'010203040' is ambiguous"):
        get_block(store, "010203040")
    key = store.keys_of(ANN, tokens(range(4)))[0].hex()
    assert get_block(store, key) is not None


@pytest.mark.parametrize("key", ["", "1234567", "0x345678", "g" * 8, "1" * 33, "1234 5678"])
def test_what_is_no_key_is_refused(store: BlockStore, key: str) -> None:
    """Too short, too long, or not hexadecimal."""
    with pytest.raises(ValueError, match="key: "):
        get_block(store, key)


def test_what_left_is_not_there_any_more(store: BlockStore) -> None:
    """A flushed block is neither listed nor found by its key."""
    key = store.keys_of(BOB, tokens(range(4)))[0].hex()
    assert get_block(store, key) is not None
    store.flush(flush_of(FlushKind.TENANT, BOB))
    assert get_block(store, key) is None
    assert list_blocks(store, tenant="bob").blocks == ()


def test_looking_changes_nothing(store: BlockStore) -> None:
    """Neither a listing nor a detail leaves a trace."""
    before = snapshot(store)
    list_blocks(store, tenant="nobody", adapter="unknown")
    get_block(store, store.keys_of(ANN, tokens(range(4)))[0].hex())
    assert snapshot(store) == before


def test_a_copys_source_counts_as_in_use_until_the_copy_is_taken() -> None:
    """A block that is to be copied is referenced by nobody, and held all the same."""
    store = make_store()
    source = cache(store, range(10))[2]
    open_(store, [*range(10), 90, 91], BOB)
    open_(store, [*range(10), 90, 91])
    held = {b.block: b.references for b in list_blocks(store, state="in_use").blocks}
    assert held[source] == 1
    assert source in {b.block for b in list_blocks(store, min_references=1).blocks}
    store.take_copies()
    assert source in {b.block for b in list_blocks(store, state="in_use").blocks}
    store.settle()
    assert source in {b.block for b in list_blocks(store, state="cached").blocks}


def test_a_cursor_before_the_first_block_is_the_beginning(store: BlockStore) -> None:
    """No block has a number below 0, so that such a cursor leaves nothing out."""
    assert list_blocks(store, cursor=-3) == list_blocks(store)
