"""Public prefixes: which leading blocks of a prompt all tenants share.

A declared prefix is shared as far as it fills whole blocks. Its blocks live in a namespace of their
own, one for each adapter, and are charged to the operator, for whom as many blocks are set aside:
so they are kept, once computed, until they are withdrawn or flushed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes
from stemkv.kvstore.matching import Matcher
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.quotas import OPERATOR
from stemkv.kvstore.roots import PUBLIC, Roots
from stemkv.kvstore.views import PublicPrefix

Adapter = tuple[str, bytes]


@dataclass(slots=True, eq=False)
class _Node:
    """One public block, by its tokens below its parent. ends: whether a declared prefix ends here.

    key: as of the present generation; of the top, that of the root.
    """

    key: BlockKey
    below: "dict[bytes, _Node]" = field(default_factory=dict)
    ends: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Publics:
    """All declared prefixes. tops: by adapter, the tree of public blocks; empty without any."""

    roots: Roots
    matcher: Matcher
    block_size: int
    tops: dict[Adapter, _Node] = field(default_factory=dict)

    def namespace(self, adapter: str, digest: bytes) -> Namespace:
        """Return where public blocks of an adapter live."""
        return Namespace(OPERATOR, PUBLIC, adapter, digest)

    def entry(self, namespace: Namespace, prompt: Tokens) -> tuple[int, bytes]:
        """Say how many leading blocks of a prompt are public, and the key of the last of them."""
        node = self.tops.get((namespace.adapter, namespace.adapter_digest))
        if node is None:
            return 0, b""
        size, depth = self.block_size, 0
        while depth < len(prompt) // size:
            block = as_bytes(prompt[depth * size : (depth + 1) * size])
            following = node.below.get(block)
            if following is None:
                break
            node, depth = following, depth + 1
        return (depth, node.key) if depth else (0, b"")

    def blocks(self) -> int:
        """How many blocks all prefixes have together; what they begin with alike counts once."""
        return sum(1 for top in self.tops.values() for _ in _below(top))

    def new_blocks(self, namespace: Namespace, prompt: Tokens) -> int:
        """How many more there would be with this prefix."""
        return len(prompt) // self.block_size - self.entry(namespace, prompt)[0]

    def add(self, namespace: Namespace, prompt: Tokens) -> None:
        """Declare a prefix; it must fill a block."""
        size, adapter = self.block_size, (namespace.adapter, namespace.adapter_digest)
        if adapter not in self.tops:
            self.tops[adapter] = _Node(self.roots.key_of(self.namespace(*adapter)))
        node = self.tops[adapter]
        for start in range(0, len(prompt) - size + 1, size):
            block = as_bytes(prompt[start : start + size])
            if block not in node.below:
                node.below[block] = _Node(self._key(node, block))
            node = node.below[block]
        node.ends = True

    def renew(self) -> None:
        """Have the keys of the present generation, after a flush."""
        for adapter, top in self.tops.items():
            top.key = self.roots.key_of(self.namespace(*adapter))
            stack = [top]
            while stack:
                node = stack.pop()
                for block, below in node.below.items():
                    below.key = self._key(node, block)
                    stack.append(below)

    def _key(self, above: _Node, block: bytes) -> BlockKey:
        return self.matcher.hash(above.key + block)

    def remove(self, adapter: Adapter, prompt: Tokens) -> int:
        """Withdraw a declared prefix; say how many of its leading blocks others still need."""
        size = self.block_size
        path = [self.tops[adapter]]
        blocks = [as_bytes(prompt[i : i + size]) for i in range(0, len(prompt) - size + 1, size)]
        for block in blocks:
            path.append(path[-1].below[block])
        path[-1].ends = False
        needed = len(blocks)
        while needed and not path[needed].ends and not path[needed].below:
            needed -= 1
            del path[needed].below[blocks[needed]]
        if not path[0].below:
            del self.tops[adapter]
        return needed

    def all(self) -> Iterator[tuple[Adapter, Tokens]]:
        """Iterate over the declared prefixes: adapter, and tokens of their whole blocks."""
        for adapter, top in self.tops.items():
            for data in _declared(top, b""):
                yield adapter, np.frombuffer(data, "<i4").astype(np.int32)

    def describe(self, adapter: Adapter, prompt: Tokens) -> PublicPrefix:
        """Return what an operator sees of a declared prefix."""
        space = self.namespace(*adapter)
        _, key = self.entry(space, prompt)
        root = self.roots.find(space)
        cached = 0 if root is None else len(self.matcher.full_blocks(root, prompt))
        blocks = len(prompt) // self.block_size
        return PublicPrefix(key.hex(), adapter[0], blocks * self.block_size, blocks, cached)


def _below(node: _Node) -> Iterator[_Node]:
    stack = list(node.below.values())
    while stack:
        node = stack.pop()
        stack.extend(node.below.values())
        yield node


def _declared(top: _Node, data: bytes) -> Iterator[bytes]:
    stack = [(top, data)]
    while stack:
        node, data = stack.pop()
        if node.ends:
            yield data
        stack.extend((below, data + block) for block, below in node.below.items())
