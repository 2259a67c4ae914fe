"""What plants faults into open sequences, leaders and planned copies."""

from collections.abc import Callable

from stemkv.kvstore import ops
from stemkv.kvstore.ids import BlockId
from stemkv.kvstore.pool import NO_BLOCKS
from stemkv.kvstore.properties.planting import Plant
from stemkv.kvstore.properties.scene import Scene


def set_state(name: str, value: int, who: str = "sequence") -> Plant:
    """Set one number of a sequence."""

    def corrupt(scene: Scene) -> None:
        setattr(scene.store.sequences[getattr(scene, who)], name, value)

    return corrupt


def set_row(column: int, value: int, who: str = "sequence") -> Plant:
    """Set one number of a sequence's row that has no name outside."""

    def corrupt(scene: Scene) -> None:
        scene.store.sequence_arrays.rows[getattr(scene, who), column] = value

    return corrupt


def put_in_table(index: int, block: Callable[[Scene], int]) -> Plant:
    """Put another block into a sequence's table, and let the counts agree."""

    def corrupt(scene: Scene) -> None:
        pool = scene.store.pool
        table = scene.store.table_of(scene.sequence)
        pool.meta[table[index], ops.REF] -= 1
        table[index] = block(scene)
        pool.meta[table[index], ops.REF] += 1

    return corrupt


def hold_twice(scene: Scene) -> None:
    """Let a sequence that publishes nothing hold its first block twice, its second not at all."""
    pool = scene.store.pool
    scene.store.sequences[scene.sequence].writes = False
    put_in_table(1, lambda s: s.cached[0])(scene)
    ops.park(pool.meta, pool.roots, pool.accounts, scene.sibling)


def hold_child_alone(scene: Scene) -> None:
    """Let a sequence that publishes nothing hold a block of its own instead of its first one."""
    pool = scene.store.pool
    scene.store.sequences[scene.sequence].writes = False
    root = int(pool.meta[scene.cached[0], ops.ROOT])
    own = int(pool.take(1, NO_BLOCKS, root)[0])
    pool.meta[own, ops.REF] = 0
    put_in_table(0, lambda _: own)(scene)
    ops.park(pool.meta, pool.roots, pool.accounts, scene.cached[0])


def change_history(scene: Scene) -> None:
    """Change a token of a sequence whose block is published."""
    scene.store.tokens_of(scene.sequence)[5] += 1


def lose_sequence(scene: Scene) -> None:
    """Forget an open sequence, its leadership not."""
    del scene.store._open.by_number[scene.leader]


def share_while_writing(scene: Scene) -> None:
    """Fork a sequence, and let both write to the shared block."""
    store = scene.store
    child = store.fork(scene.sequence)
    assert isinstance(child, int)
    for sequence in (scene.sequence, child):
        store.extend(sequence, 1)
        store.sequences[sequence].reserved += 1


def publish_ahead(scene: Scene) -> None:
    """Say of a sequence that it has still to write what is published."""
    state = scene.store.sequences[scene.sequence]
    state.published, state.computed = 1, 5


def redirect_copy(scene: Scene) -> None:
    """Let a planned copy go to a block that is published."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned.clear()
    planned[copy.destination] = copy._replace(destination=BlockId(scene.cached[1]))


def chain_copies(scene: Scene) -> None:
    """Plan a copy from a block that is itself waiting for one."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    third = BlockId(scene.private)
    planned[third] = copy._replace(source=copy.destination, destination=third)


def stretch_copy(scene: Scene) -> None:
    """Let a planned copy be longer than a block."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(tokens=5)


def throw_copy(scene: Scene) -> None:
    """Let a planned copy go to a block that there is not."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(destination=BlockId(99))


def source_nowhere(scene: Scene) -> None:
    """Let a planned copy come from a block that there is not."""
    planned = scene.store.copies._planned
    copy = next(iter(planned.values()))
    planned[copy.destination] = copy._replace(source=BlockId(99))


def lose_block(scene: Scene) -> None:
    """Put a number that is no block into a sequence's table."""
    scene.store.table_of(scene.sequence)[1] = 99


def mislead(scene: Scene) -> None:
    """Let a leader promise another block than its next."""
    scene.store.leaders.stop(scene.leader)
    scene.store.leaders.start(scene.leader, (scene.cached[0], b"1234"))


def hold_what_is_out(scene: Scene) -> None:
    """Let a sequence that publishes hold a block that is out of service."""
    pool = scene.store.pool
    own = int(scene.store.table_of(scene.sequence)[2])
    put_in_table(2, lambda s: s.out)(scene)
    ops.free(pool.meta, pool.roots, pool.accounts, own)
