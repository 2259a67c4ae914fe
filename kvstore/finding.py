"""Where a prompt's chain goes, and what of it is there: public blocks, then the tenant's own."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes, chain
from stemkv.kvstore.matching import NO_MATCH, Match, Matcher
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import NONE
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.public import Publics
from stemkv.kvstore.quotas import OPERATOR
from stemkv.kvstore.roots import Root, Roots
from stemkv.kvstore.sequences import Path


class Way(NamedTuple):
    """A prompt's chain as far as it exists: see `Path`; a root is None if nothing hangs on it.

    key: of the last public block, b"" for none.
    """

    public: Root | None
    root: Root | None
    entry: int = 0
    key: bytes = b""


class Found(NamedTuple):
    """What is there of a prompt. parent: what comes next hangs on it, NONE for no root at all."""

    match: Match
    parent: int


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
        if not self.publics:
            return Way(None, self.roots.find(namespace))
        entry, key = self.publics.entry(namespace, prompt)
        if not entry:
            return Way(None, self.roots.find(namespace))
        space = self.publics.namespace(namespace.adapter, namespace.adapter_digest)
        return Way(self.roots.find(space), self.roots.find(namespace, key), entry, key)

    def path(self, namespace: Namespace, prompt: Tokens) -> Path:
        """Say where a prompt's chain goes, making the roots that are missing."""
        if not self.publics:
            return Path(self.roots.get(namespace))
        entry, key = self.publics.entry(namespace, prompt)
        if not entry:
            return Path(self.roots.get(namespace))
        space = self.publics.namespace(namespace.adapter, namespace.adapter_digest)
        above = as_bytes(prompt[: entry * self.block_size])
        return Path(self.roots.get(namespace, key, above), self.roots.get(space), entry)

    def find(self, way: Way, prompt: Tokens, tenant: str) -> Found:
        """Return what is there along a way; a tenant's own blocks, and public ones, in part too."""
        if not way.entry:
            return self._below(way.root, prompt, self.owners.find(tenant))
        start = way.entry * self.block_size
        public = self._below(way.public, prompt[:start], self.owners.find(OPERATOR))
        if len(public.match.blocks) < way.entry:
            match = public.match
            return Found(match._replace(unheld=0, unheld_public=match.unheld), public.parent)
        match, parent = self._below(way.root, prompt[start:], self.owners.find(tenant))
        blocks = np.concatenate([public.match.blocks, match.blocks])
        found = match._replace(blocks=blocks, unheld_public=public.match.unheld)
        return Found(found, parent)

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
            return Found(NO_MATCH, NONE)
        match = self.matcher.match(root, prompt, owner, partial=self.partial)
        parent = int(match.blocks[-1]) if len(match.blocks) else root.reference
        return Found(match, parent)
