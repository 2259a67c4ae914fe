"""Who computes which block, so that others with the same prefix can wait for it (rule 4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stemkv.kvstore.ids import SequenceId

Pending = tuple[int, bytes]
"""A block that is being computed: its parent, and its tokens as little-endian int32."""


@dataclass(slots=True, eq=False)
class Leaders:
    """At most one leader a block, and one block a leader."""

    _by_block: dict[Pending, SequenceId] = field(default_factory=dict)
    _by_leader: dict[SequenceId, Pending] = field(default_factory=dict)

    def all(self) -> Mapping[Pending, SequenceId]:
        """Return every block that is being computed, with its leader."""
        return self._by_block

    def clear(self) -> None:
        """Let nobody lead."""
        self._by_block.clear()
        self._by_leader.clear()

    def find(self, block: Pending) -> SequenceId | None:
        """Return who computes a block."""
        return self._by_block.get(block)

    def leads(self, sequence: SequenceId) -> bool:
        """Whether a sequence is said to compute a block."""
        return sequence in self._by_leader

    def start(self, sequence: SequenceId, block: Pending) -> None:
        """Let a sequence lead, unless the block has a leader."""
        assert sequence not in self._by_leader
        if self._by_block.setdefault(block, sequence) == sequence:
            self._by_leader[sequence] = block

    def stop(self, sequence: SequenceId) -> None:
        """Let a sequence lead no more."""
        block = self._by_leader.pop(sequence, None)
        if block is not None:
            del self._by_block[block]
