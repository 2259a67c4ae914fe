"""Where a prompt's chain goes, and what of it is there: public blocks, then the tenant's own."""

from dataclasses import dataclass

import numpy as np

from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes, chain
from stemkv.kvstore.matching import NO_MATCH, Match, Matcher
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import NONE
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.public import Publics
from stemkv.kvstore.roots import Path, Root, Roots, Way

Found = tuple[Match, int]
"""What is there of a prompt, and what comes next hangs on: NONE for no root at all."""

_NOWHERE = Way(None)
_NOTHING: Found = (NO_MATCH, NONE)


@dataclass(frozen=True, slots=True, eq=False)
class Finder:
    """Looks prompts up across the public prefixes and a tenant's domain."""

    roots: Roots
    publics: Publics
    matcher: Matcher
    owners: Owners
    block_size: int
    partial: bool

    def way(self, namespace: Namespace, prompt: Tokens) -> Way:
        """Say where a prompt's chain goes, making nothing."""
        entry, key = self.publics.entry(namespace, prompt) if self.publics.tops else (0, b"")
        if not entry:
            root = self.roots.find(namespace)
            return root.way if root else _NOWHERE
        space = self.publics.namespace(namespace.adapter, namespace.adapter_digest)
        above = as_bytes(prompt[: entry * self.block_size])
        return Way(self.roots.find(namespace, above), self.roots.find(space), entry, key)

    def path(self, way: Way, namespace: Namespace, prompt: Tokens) -> Path:
        """Say where a prompt's chain goes, making the roots that are missing on its way."""
        if not way.entry:
            return (way.root or self.roots.get(namespace)).path
        space = self.publics.namespace(namespace.adapter, namespace.adapter_digest)
        above = as_bytes(prompt[: way.entry * self.block_size])
        own = way.root or self.roots.get(namespace, way.key, above)
        return Path(own, way.public or self.roots.get(space), way.entry)

    def find(self, way: Way, prompt: Tokens, tenant: str) -> Found:
        """Return what is there along a way; a tenant's own blocks, and public ones, in part too."""
        if not way.entry:
            root = way.root
            if root is None:
                return _NOTHING
            owner = self.owners.find(tenant)
            match = self.matcher.match(root, prompt, owner, partial=self.partial)
            return match, int(match.blocks[-1]) if len(match.blocks) else root.reference
        start = way.entry * self.block_size
        public, parent = self._below(way.public, prompt[:start], self.owners.operator)
        if len(public.blocks) < way.entry:
            return public._replace(unheld=0, room=-1), parent
        own, parent = self._below(way.root, prompt[start:], self.owners.find(tenant))
        blocks = np.concatenate([public.blocks, own.blocks])
        return own._replace(blocks=blocks), parent

    def keys(self, namespace: Namespace, prompt: Tokens) -> list[BlockKey]:
        """Return the keys that a prompt's full blocks have, cached or not."""
        entry, key = self.publics.entry(namespace, prompt)
        start, digest, size = entry * self.block_size, self.matcher.digest, self.block_size
        own = self.roots.key_of(namespace, key)
        rest = chain(digest, own, as_bytes(prompt[start:]), size)
        if not entry:
            return rest
        space = self.publics.namespace(namespace.adapter, namespace.adapter_digest)
        above = chain(digest, self.roots.key_of(space), as_bytes(prompt[:start]), size)
        return above + rest

    def _below(self, root: Root | None, prompt: Tokens, owner: int) -> Found:
        if root is None:
            return _NOTHING
        match = self.matcher.match(root, prompt, owner, partial=self.partial)
        parent = int(match.blocks[-1]) if len(match.blocks) else root.reference
        return match, parent
