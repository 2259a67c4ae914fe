"""The ledger of block copies: planned for the next step, or carried out by the one under way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stemkv.kvstore.ids import BlockId
from stemkv.kvstore.pool import Pool
from stemkv.kvstore.values import Copy

_NOTHING: frozenset[BlockId] = frozenset()


@dataclass(slots=True, eq=False)
class Copies:
    """Every copy holds a pin on its source until the step that carries it out has run."""

    pool: Pool
    _planned: dict[BlockId, Copy] = field(default_factory=dict)
    _executing: list[Copy] = field(default_factory=list)

    @property
    def under_way(self) -> bool:
        """Whether a step is carrying copies out."""
        return bool(self._executing)

    @property
    def planned(self) -> bool:
        """Whether the next step has copies to carry out."""
        return bool(self._planned)

    def open(self) -> tuple[Copy, ...]:
        """Return the copies that are planned or under way."""
        return (*self._planned.values(), *self._executing)

    def awaited(self, block: int) -> bool:
        """Whether a block's first tokens are still to be copied into it."""
        return BlockId(block) in self._planned

    def plan(self, source: int, destination: int, tokens: int) -> None:
        """Plan a copy of the first `tokens` positions of a block.

        A source that is itself waiting for its content stands for where that comes from, so that
        no destination is ever a source.
        """
        awaited = self._planned.get(BlockId(source))
        if awaited is not None:
            assert tokens <= awaited.tokens
            source = awaited.source
        self.pool.pin(source)
        copy = Copy(BlockId(source), BlockId(destination), tokens)
        self._planned[copy.destination] = copy

    def cancel(self, destinations: Iterable[int]) -> None:
        """Forget the planned copies into blocks that are about to be let go."""
        if not self._planned:
            return  # the usual case; `destinations` may be long to go through
        gone = [c for b in destinations if (c := self._planned.pop(BlockId(b), None)) is not None]
        if gone:
            self.pool.unpin(c.source for c in gone)

    def take(self) -> tuple[Copy, ...]:
        """Return the planned copies; they are under way from now on."""
        if not self._planned:
            return ()
        copies = tuple(self._planned.values())
        self._executing += copies
        self._planned.clear()
        return copies

    def retain(self, keep: Callable[[BlockId, Copy], bool]) -> set[int]:
        """Forget the planned copies, by what they are planned as, that are not to be kept.

        Sources' counts of pins are left as they are. Returns the blocks that were to be filled.
        """
        gone = {b: copy for b, copy in self._planned.items() if not keep(b, copy)}
        for b in gone:
            del self._planned[b]
        return {int(b) for b in gone} | {int(copy.destination) for copy in gone.values()}

    def settle(self) -> frozenset[BlockId]:
        """Let the sources go of the copies that were under way; return their destinations."""
        if not self._executing:
            return _NOTHING
        destinations = frozenset(c.destination for c in self._executing)
        self.pool.unpin(c.source for c in self._executing)
        self._executing.clear()
        return destinations
