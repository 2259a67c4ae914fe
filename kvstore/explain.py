"""Why a prompt would not be reused further (rule 13): worked out when asked, changing nothing.

For the operator. What is compared stays inside the prompt's own domain; which token differs is
said of the asking tenant's own blocks alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain as chained
from itertools import islice

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.ghosts import FLUSHED, Ghost
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes, chain
from stemkv.kvstore.matching import NO_MATCH, Match, end_of
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.roots import Root
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
    """One prompt, and what of it is there. root: None if nothing was opened in its namespace."""

    store: BlockStore
    namespace: Namespace
    prompt: Tokens
    root: Root | None
    match: Match
    hurried: bool

    @classmethod
    def of(cls, store: BlockStore, namespace: Namespace, prompt: Tokens, hurried: bool) -> "_Case":
        root, match = store.roots.find(namespace), NO_MATCH
        if root is not None and store.may_hit:
            owner = store.owners.find(namespace.tenant)
            match = store.matcher.match(root, prompt, owner, partial=store.config.partial_hits)
        return cls(store, namespace, prompt, root, match, hurried)

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
        if self.root is None:
            return self.key_under(self.store.roots.key_of(self.namespace))
        # The blocks before it are here, and have their keys.
        matcher, parent = self.store.matcher, end_of(self.match.blocks, self.root)
        return matcher.hash(matcher.key_of_parent(parent, self.root) + as_bytes(self.next_block))

    def key_under(self, root: BlockKey) -> BlockKey:
        """Return the key that the next block has in a chain from this root key."""
        data = as_bytes(self.prompt[: self.full_tokens + self.store.config.block_size])
        return chain(self.store.matcher.digest, root, data, self.store.config.block_size)[-1]

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
    if case.root is None or case.ends_early:
        return None
    parent = end_of(case.match.blocks, case.root)
    if case.store.leaders.find((parent, as_bytes(case.next_block))) is None:
        return None
    return case.because("computing", "Another request is computing the next block now.")


def _left(case: _Case) -> Explanation | None:
    """Say when and why the next block left, in this generation or in one before a flush."""
    if case.ends_early:
        return None
    store = case.store
    retired = store.roots.retired_keys(case.namespace)
    for key in chained((case.key(),), map(case.key_under, retired)):
        ghost = store.ghosts.find(key)
        if ghost is not None:
            return _flushed(case, ghost) if ghost.cause == FLUSHED else _evicted(case, ghost)
    return None


def _flushed(case: _Case, ghost: Ghost) -> Explanation:
    seconds = case.store.clock() - ghost.seconds
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
    _, adapter, digest, salt = identity = _identity(case)
    for root in _others(case):
        held = len(case.store.matcher.full_blocks(root, case.prompt))
        if held <= len(case.match.blocks):
            continue
        tokens = held * case.store.config.block_size
        assert root.identity != identity
        if (root.identity[1], root.identity[2]) != (adapter, digest):
            other = f"adapter {root.identity[1]!r}" if root.identity[1] else "no adapter"
            if root.identity[1] == adapter:
                other = f"other weights of adapter {adapter!r}"
            return case.because(
                "other_adapter", f"{tokens} tokens are cached for {other}, which shares nothing."
            )
        assert root.identity[3] != salt
        other = f"salt {root.identity[3]!r}" if root.identity[3] else "no salt"
        return case.because(
            "other_salt", f"{tokens} tokens are cached under {other}, which shares nothing."
        )
    return None


def _others(case: _Case) -> list[Root]:
    """Return the namespaces of the same domain, the newest first if not all are looked at."""
    roots = case.store.roots
    if not case.hurried:
        return roots.siblings(case.namespace)
    if len(roots) > _NAMESPACES_SIFTED:
        return []
    return roots.siblings(case.namespace)[: -_NAMESPACES_COMPARED - 1 : -1]


def _identity(case: _Case) -> tuple[bytes, str, bytes, str]:
    n = case.namespace
    return (n.domain, n.adapter, n.adapter_digest, n.salt)


def _differs(case: _Case) -> Explanation | None:
    """Say which token sets the prompt apart from the nearest block of the same tenant."""
    if case.root is None:
        return None
    pool, offset = case.store.pool, case.full_tokens
    nearest, length = case.match.partial, case.match.partial_tokens
    if nearest == ops.NONE:
        nearest, length = _nearest(case, case.root)
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


def _nearest(case: _Case, root: Root) -> tuple[int, int]:
    """Return the own block after the match with the longest common prefix, and its length."""
    pool, offset = case.store.pool, case.full_tokens
    owner = case.store.owners.find(case.namespace.tenant)
    nearest, length = ops.NONE, -1
    for block in islice(pool.children(end_of(case.match.blocks, root)), _SIBLINGS):
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
