"""Names for the integers and bytes that the store hands out, so that they cannot be mixed up."""

from typing import NewType

BlockId = NewType("BlockId", int)
"""Number of a physical block, 0 to capacity_blocks - 1."""

BlockKey = NewType("BlockKey", bytes)
"""16 bytes that name a full block by content: parent key, tokens, extra context."""

SequenceId = NewType("SequenceId", int)
"""Handle of an open sequence of the store; reused after release."""

FlushId = NewType("FlushId", str)
"""Name of one announced flush, unique in a deployment."""

WorkerId = NewType("WorkerId", str)
"""Name of one engine process, unique in a deployment and new at every start."""
