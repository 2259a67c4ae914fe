"""What plants faults into blocks: rows, lists, index and tree."""

from collections.abc import Callable

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.properties.scene import (
    ANN,
    Scene,
    open_sequence,
)

Plant = Callable[[Scene], None]

FREE_HEAD = -1 - ops.FREE_LIST


def account(scene: Scene, name: str) -> int:
    """Return the number of an account."""
    return scene.store.accounts.names.index(name)


def set_meta(block: str, column: int, value: int) -> Plant:
    """Set one number of one row."""
    return change_meta(block, column, lambda _: value)


def change_meta(block: str, column: int, value: Callable[[int], int]) -> Plant:
    """Change one number of one row."""

    def corrupt(scene: Scene) -> None:
        b = {
            "cached": scene.cached[1],
            "parent": scene.cached[0],
            "tail": scene.cached[2],
            "sibling": scene.sibling,
            "private": scene.private,
            "free": int(scene.store.pool.meta[FREE_HEAD, ops.NEXT]),
            "pinned": scene.pinned[0],
            "pinned child": scene.pinned[1],
            "stale": scene.stale,
            "out": scene.out,
        }[block]
        row = scene.store.pool.meta[b]
        row[column] = value(int(row[column]))

    return corrupt


def change_root(block: str) -> Plant:
    """Let a block hang on a root of another account."""

    def corrupt(scene: Scene) -> None:
        strange = scene.store.sequences[scene.leader].root.index
        set_meta(block, ops.ROOT, strange)(scene)

    return corrupt


def swap_order(scene: Scene) -> None:
    """Move a parent to the oldest end of the cached list."""
    pool = scene.store.pool
    leaf = open_sequence(scene.store, range(4), ANN)
    scene.store.release(scene.sequence)
    scene.store.release(leaf)
    b = scene.cached[0]
    ops.unlink(pool.meta, b)
    head = -1 - int(ops.list_of(pool.meta, pool.roots, b))
    after = int(pool.meta[head, ops.NEXT])
    pool.meta[head, ops.NEXT] = pool.meta[after, ops.PREV] = b
    pool.meta[b, ops.PREV], pool.meta[b, ops.NEXT] = head, after


def shelve_tail(scene: Scene) -> None:
    """Move a tail to the list of published blocks."""
    pool = scene.store.pool
    ops.unlink(pool.meta, scene.cached[2])
    ops.link_newest(pool.meta, ops.cached_list(account(scene, "ann")), scene.cached[2])


def make_twin(scene: Scene) -> None:
    """Publish a second block with the content of a cached one."""
    pool = scene.store.pool
    twin, original = scene.private, scene.cached[1]
    pool.tokens[twin] = pool.tokens[original]
    pool.keys[twin] = (1, 2)
    root, owner = (int(pool.meta[original, c]) for c in (ops.ROOT, ops.OWNER))
    ops.enter(pool.meta, pool.roots, pool.accounts, twin, 4, scene.cached[0], root, owner)
    pool.meta[twin, ops.STATE] = ops.PUBLISHED
    ops.insert_key(pool.table, pool.keys, twin)


def drop_from_index(scene: Scene) -> None:
    """Take a published block out of the index alone."""
    pool = scene.store.pool
    ops.delete_key(pool.table, pool.keys, scene.cached[1])


def hide_in_index(scene: Scene) -> None:
    """Move an entry of the index to where it is not looked for."""
    table = scene.store.pool.table
    slot = int(((table >= 0) & (table & 0xFFFFFFFF == scene.cached[1])).argmax())
    free = (table == ops.NONE) & (np.roll(table, 1) == ops.NONE)
    entry, table[slot] = table[slot], ops.NONE
    table[int(free.argmax())] = entry


def change_tokens(scene: Scene) -> None:
    """Change what a cached block is said to hold."""
    scene.store.pool.tokens[scene.cached[1], 2] += 1


def corrupt_end(scene: Scene) -> None:
    """Let a list's sentinel name another as its last block."""
    head = -1 - int(ops.cached_list(account(scene, "ann")))
    scene.store.pool.meta[head, ops.PREV] = scene.private


def corrupt_head(scene: Scene) -> None:
    """Let a root's first child be no block."""
    root = scene.store.sequences[scene.sequence].root
    scene.store.pool.roots[root.index, ops.HEAD] = 99


def adopt_child(scene: Scene) -> None:
    """Let a block without children claim one of another, which is listed before it."""
    scene.store.pool.meta[scene.cached[1], ops.FIRST_CHILD] = scene.sibling


def loop_list(scene: Scene) -> None:
    """Let the free list bite its tail."""
    meta = scene.store.pool.meta
    first = int(meta[FREE_HEAD, ops.NEXT])
    meta[int(meta[first, ops.NEXT]), ops.NEXT] = first


def loop_siblings(scene: Scene) -> None:
    """Let the last of a block's children be its own next sibling."""
    meta = scene.store.pool.meta
    last = int(meta[scene.cached[0], ops.FIRST_CHILD])
    while meta[last, ops.NEXT_SIBLING] >= 0:
        last = int(meta[last, ops.NEXT_SIBLING])
    meta[last, ops.NEXT_SIBLING] = last
    meta[last, ops.PREV_SIBLING] = last


def put_out_on_list(scene: Scene) -> None:
    """Put a block that is out of service on the free list."""
    ops.link_newest(scene.store.pool.meta, ops.FREE_LIST, scene.out)


def index_out(scene: Scene) -> None:
    """Put a block that is out of service into the index."""
    pool = scene.store.pool
    ops.insert_key(pool.table, pool.keys, scene.out)


def unlink(block: Callable[[Scene], int]) -> Plant:
    """Take a block off its list alone."""
    return lambda scene: ops.unlink(scene.store.pool.meta, block(scene))


def grow_child_on_tail(scene: Scene) -> None:
    """Let a tail claim a child."""
    scene.store.pool.meta[scene.cached[2], ops.FIRST_CHILD] = scene.sibling


def hide_stale_in_index(scene: Scene) -> None:
    """Move a flushed block's entry to where it will not be removed from."""
    scene.cached[1] = scene.stale
    hide_in_index(scene)
