"""How a location is told."""

from collections.abc import Iterable

from stemkv.kvstore.directory.protocol import WorkerHolding


def leading_run(held: Iterable[bool]) -> int:
    """Count how many are held before the first that is not."""
    count = 0
    for is_held in held:
        if not is_held:
            break
        count += 1
    return count


def longest_first(holdings: Iterable[WorkerHolding]) -> tuple[WorkerHolding, ...]:
    """Order workers by how much they hold, then by name; leave out those that hold nothing."""
    found = [holding for holding in holdings if holding.blocks]
    return tuple(sorted(found, key=lambda holding: (-holding.blocks, holding.worker)))
