"""What plants faults into accounts, roots, pins and the order of scores."""

import numpy as np

from stemkv.kvstore import leaf_heaps, ops
from stemkv.kvstore.eviction import ScoredOrder
from stemkv.kvstore.pins import Pin
from stemkv.kvstore.properties.planting import Plant, account
from stemkv.kvstore.properties.scene import Scene


def count_more_sequences(scene: Scene) -> None:
    """Count a sequence too many on a root."""
    scene.store.sequences[scene.sequence].root.sequences += 1


def kill_root(scene: Scene) -> None:
    """Take a root away from under its blocks."""
    root = scene.store.sequences[scene.sequence].root
    del scene.store.roots._by_identity[root.identity]


def put_on_list_of(name: str) -> Plant:
    """Move a cached block of ann's to another account's list."""

    def corrupt(scene: Scene) -> None:
        meta = scene.store.pool.meta
        ops.unlink(meta, scene.cached[1])
        ops.link_newest(meta, ops.cached_list(account(scene, name)), scene.cached[1])

    return corrupt


def count_root(sequence: str, column: int) -> Plant:
    """Count a block too many on the root of a sequence."""

    def corrupt(scene: Scene) -> None:
        root = scene.store.sequences[getattr(scene, sequence)].root
        scene.store.pool.roots[root.index, column] += 1

    return corrupt


def set_root(sequence: str, column: int, value: int) -> Plant:
    """Set one number of the row of a sequence's root."""

    def corrupt(scene: Scene) -> None:
        root = scene.store.sequences[getattr(scene, sequence)].root
        scene.store.pool.roots[root.index, column] = value

    return corrupt


def add_to_account(name: str, column: int, change: int) -> Plant:
    """Change one number of an account, "" for the pool's own row."""

    def corrupt(scene: Scene) -> None:
        number = account(scene, name) if name else ops.POOL
        scene.store.pool.accounts[number, column] += change

    return corrupt


def _pin(scene: Scene) -> Pin:
    return next(iter(scene.store.pins))


def keep_child_alone(scene: Scene) -> None:
    """Let the scene's pin keep the end of its chain only."""
    pool, parent = scene.store.pool, scene.pinned[0]
    _pin(scene).blocks = np.array(scene.pinned[1:], np.int32)
    ops.keep_no_more(pool.meta, pool.roots, pool.accounts, np.array([parent], np.int32))


def keep_nowhere(scene: Scene) -> None:
    """Let a pin keep a block that there is not."""
    _pin(scene).blocks = np.array([*scene.pinned, 99], np.int32)


def _heaps(scene: Scene) -> tuple[ScoredOrder, int]:
    """Return the order of a store with scores, and the number of bob's account."""
    order = scene.store.order
    assert isinstance(order, ScoredOrder)
    return order, account(scene, "bob")


def leave_out(scene: Scene) -> None:
    """Take a leaf out of its heap."""
    order, bob = _heaps(scene)
    leaf_heaps.take_out(order._leaves, bob, scene.leaves[0])


def heap_of_another(scene: Scene) -> None:
    """Put a leaf into the heap of another account."""
    order, bob = _heaps(scene)
    leaf_heaps.take_out(order._leaves, bob, scene.leaves[0])
    leaf_heaps.put(order._leaves, account(scene, "ann"), scene.leaves[0])


def turn_heap_over(scene: Scene) -> None:
    """Put the lowest of two leaves below the other."""
    order, bob = _heaps(scene)
    leaves = order._leaves
    for b in scene.leaves:
        leaf_heaps.take_out(leaves, bob, b)
    above, below = scene.leaves
    if leaf_heaps.precedes(leaves, above, below):
        above, below = below, above
    rest = int(leaves.top[bob])
    leaves.top[bob] = above
    leaves.before[above], leaves.child[above] = ops.NONE, below
    leaves.before[below], leaves.following[below] = above, rest
    if rest >= 0:
        leaves.before[rest] = below


def score_of_another(scene: Scene) -> None:
    """Let two leaves have one row of scores."""
    order, _ = _heaps(scene)
    order._slots[scene.leaves[0]] = order._slots[scene.leaves[1]]


def score_of_nothing(scene: Scene) -> None:
    """Let a leaf have a row of scores that there is not."""
    _heaps(scene)[0]._slots[scene.leaves[0]] = 10**9
