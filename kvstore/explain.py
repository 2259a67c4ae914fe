"""Why a prompt would not be reused further (rule 13): worked out when asked, changing nothing.

For the operator. What is compared stays inside the prompt's own domain; which token differs is
said of the asking tenant's own blocks alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.ghosts import FLUSHED, Ghost
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes, chain
from stemkv.kvstore.matching import Match
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.roots import Root, Way
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import Explanation, StopReason

_SIBLINGS = 32

# In a hurry: so many namespaces may be open here for others to be compared at all, and so many are.
_NAMESPACES_SIFTED = 1024
_NAMESPACES_COMPARED = 32


def explain(
    store: BlockStore, namespace: Namespace, prompt: Tokens, *, hurried: bool = False
) -> Explanation:
    """Say how much of a prompt would be reused now, and why not more.

    prompt: int32 [tokens]. hurried: while a step waits; other adapters and salts are compared only
    as far as a few of them go, so that a client who makes thousands cannot make it long. Raises
    ValueError if the prompt is empty.
    """
    if not len(prompt):
        raise ValueError("prompt: it has no tokens")
    case = _Case.of(store, namespace, np.array(prompt, np.int32), hurried)
    for find in _REASONS:
        explanation = find(case)
        if explanation is not None:
            return explanation
    return case.because(
        "not_seen",
        "No block like the next one has been in the cache, as far back as departures are kept.",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One prompt, where its chain goes, and what of it is there."""

    store: BlockStore
    namespace: Namespace
    prompt: Tokens
    way: Way
    match: Match
    parent: int
    hurried: bool

    @classmethod
    def of(cls, store: BlockStore, namespace: Namespace, prompt: Tokens, hurried: bool) -> "_Case":
        way, (match, parent) = store.find(namespace, prompt)
        return cls(store, namespace, prompt, way, match, parent, hurried)

    @property
    def is_public(self) -> bool:
        """Whether the next block belongs to a public prefix."""
        return len(self.match.blocks) < self.way.entry

    @property
    def place(self) -> tuple[Namespace, bytes, Tokens]:
        """Which namespace the next block is of, after which public tokens, and its chain there."""
        if self.is_public:
            n = self.namespace
            return self.store.publics.namespace(n.adapter, n.adapter_digest), b"", self.prompt
        start = self.way.entry * self.store.config.block_size
        return self.namespace, as_bytes(self.prompt[:start]), self.prompt[start:]

    @property
    def full_tokens(self) -> int:
        """Tokens in leading full blocks."""
        return len(self.match.blocks) * self.store.config.block_size

    @property
    def reused(self) -> int:
        """Tokens that would be reused."""
        return self.full_tokens + self.match.partial_tokens

    @property
    def next_block(self) -> Tokens:
        """The first block of the prompt that is not there; shorter than a block at the end."""
        return self.prompt[self.full_tokens : self.full_tokens + self.store.config.block_size]

    @property
    def ends_early(self) -> bool:
        """Whether what follows the full blocks is too short to be one."""
        return len(self.next_block) < self.store.config.block_size

    def key(self) -> BlockKey:
        """Return the key that the next block has."""
        if self.parent == ops.NONE:
            end = self.full_tokens + self.store.config.block_size
            return self.store.keys_of(self.namespace, self.prompt[:end])[-1]
        # The blocks before it are here, and have their keys.
        if self.parent >= 0:
            above = self.store.pool.key(self.parent)
        else:
            above = self.store.roots[-2 - self.parent].key
        return self.store.matcher.hash(above + as_bytes(self.next_block))

    def key_under(self, root: BlockKey) -> BlockKey:
        """Return the key that the next block has in a chain from this root key."""
        size, (_, _, own) = self.store.config.block_size, self.place
        end = self.full_tokens + size - (len(self.prompt) - len(own))
        return chain(self.store.matcher.digest, root, as_bytes(own[:end]), size)[-1]

    def because(self, reason: StopReason, detail: str) -> Explanation:
        """Give this reason."""
        return Explanation(
            prompt_tokens=len(self.prompt),
            full_block_tokens=self.full_tokens,
            partial_tokens=self.match.partial_tokens,
            reason=reason,
            position=min(self.reused, len(self.prompt) - 1),
            detail=detail,
        )


def _disabled(case: _Case) -> Explanation | None:
    if case.store.config.prefix_cache:
        return None
    return case.because("disabled", "The prefix cache is switched off.")


def _cold(case: _Case) -> Explanation | None:
    if case.store.directory.current:
        return None
    return case.because(
        "cold",
        "This worker is cut off from the directory and may have missed a flush, so nothing hits.",
    )


def _complete(case: _Case) -> Explanation | None:
    # A prompt of one token reuses nothing; that is not worth the name.
    if case.reused < max(1, len(case.prompt) - 1):
        return None
    return case.because("complete", "All tokens but the last, which is always run, are reused.")


def _computing(case: _Case) -> Explanation | None:
    if case.parent == ops.NONE or case.ends_early:
        return None
    if case.store.leaders.find((case.parent, as_bytes(case.next_block))) is None:
        return None
    return case.because("computing", "Another request is computing the next block now.")


def _left(case: _Case) -> Explanation | None:
    """Say when and why the next block left, in this generation or in one before a flush."""
    if case.ends_early:
        return None
    store, (space, before, _) = case.store, case.place
    ghost = store.ghosts.find(case.key())
    if ghost is not None:
        return _flushed(case, ghost.seconds) if ghost.cause == FLUSHED else _evicted(case, ghost)
    for root, died in store.roots.retired_keys(space, before):
        key = case.key_under(root)
        ghost = store.ghosts.find(key)
        if ghost is not None and ghost.cause != FLUSHED:
            return _evicted(case, ghost)
        if ghost is not None or (store.pool.stale and store.pool.is_stale(key)):
            return _flushed(case, died)
    return None


def _flushed(case: _Case, at: float) -> Explanation:
    seconds = case.store.clock() - at
    return case.because("flushed", f"The next block was flushed {seconds:.1f} seconds ago.")


def _evicted(case: _Case, ghost: Ghost) -> Explanation:
    seconds = case.store.clock() - ghost.seconds
    tenant = case.store.owners.names[ghost.cause]
    explanation = case.because(
        "evicted",
        f"The next block was evicted {seconds:.1f} seconds ago, when {tenant!r} needed blocks.",
    )
    return replace(explanation, evicted_seconds_ago=seconds, evicted_for=tenant)


def _elsewhere(case: _Case) -> Explanation | None:
    """Say which other adapter or salt of the domain holds more of the prompt."""
    if case.ends_early:
        return None
    space, _, own = case.place
    adapter, digest = space.adapter, space.adapter_digest
    above = case.full_tokens - (len(case.prompt) - len(own))
    for root in _others(case):
        held = len(case.store.matcher.full_blocks(root, own))
        if held * case.store.config.block_size <= above:
            continue
        tokens = held * case.store.config.block_size
        if (root.identity[1], root.identity[2]) != (adapter, digest):
            other = f"adapter {root.identity[1]!r}" if root.identity[1] else "no adapter"
            if root.identity[1] == adapter:
                other = f"other weights of adapter {adapter!r}"
            return case.because(
                "other_adapter", f"{tokens} tokens are cached for {other}, which shares nothing."
            )
        other = f"salt {root.identity[3]!r}" if root.identity[3] else "no salt"
        return case.because(
            "other_salt", f"{tokens} tokens are cached under {other}, which shares nothing."
        )
    return None


def _others(case: _Case) -> list[Root]:
    """Return the namespaces of the same domain, the newest first if not all are looked at."""
    roots, (space, before, _) = case.store.roots, case.place
    if not case.hurried:
        return roots.siblings(space, before)
    if len(roots) > _NAMESPACES_SIFTED:
        return []
    return roots.siblings(space, before)[: -_NAMESPACES_COMPARED - 1 : -1]


def _differs(case: _Case) -> Explanation | None:
    """Say which token sets the prompt apart from the nearest block of the same tenant."""
    if case.parent == ops.NONE:
        return None
    pool, offset = case.store.pool, case.full_tokens
    nearest, length = case.match.partial, case.match.partial_tokens
    if nearest == ops.NONE:
        nearest, length = _nearest(case)
    if nearest == ops.NONE or length == min(pool.meta[nearest, ops.FILL], len(case.next_block)):
        return None
    expected, found = int(pool.tokens[nearest, length]), int(case.prompt[offset + length])
    explanation = case.because(
        "token_differs",
        f"The nearest cached block goes on with token {expected} at position {offset + length}, "
        f"the prompt with {found}.",
    )
    return replace(
        explanation,
        differing_position=offset + length,
        expected_token=expected,
        found_token=found,
    )


def _nearest(case: _Case) -> tuple[int, int]:
    """Return the own block after the match with the longest common prefix, and its length."""
    pool, offset = case.store.pool, case.full_tokens
    owner = case.store.owners.find(case.place[0].tenant)
    nearest, length = ops.NONE, -1
    for block in islice(pool.children(case.parent), _SIBLINGS):
        if pool.meta[block, ops.OWNER] == owner:
            same = pool.common_prefix(block, case.prompt, offset)
            if same > length:
                nearest, length = block, same
    return nearest, length


def _short(case: _Case) -> Explanation | None:
    if not case.ends_early:
        return None
    rest, size = len(case.next_block), case.store.config.block_size
    return case.because(
        "shorter_than_block",
        f"What follows the reused blocks is {rest} tokens, and a block is {size}.",
    )


_REASONS: tuple[Callable[[_Case], Explanation | None], ...] = (
    _disabled,
    _cold,
    _complete,
    _computing,
    _left,
    _elsewhere,
    _differs,
    _short,
)
"""What may be the reason, the most certain first."""
