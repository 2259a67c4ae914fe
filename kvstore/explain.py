"""Why a prompt would not be reused further (rule 13): worked out when asked, changing nothing.

For the operator. What is compared stays inside the prompt's own domain; which token differs is
said of the asking tenant's own blocks alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

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


def explain(store: BlockStore, namespace: Namespace, prompt: Tokens) -> Explanation:
    """Say how much of a prompt would be reused now, and why not more.

    prompt: int32 [tokens]. Raises ValueError if it is empty.
    """
    if not len(prompt):
        raise ValueError("prompt: it has no tokens")
    case = _Case.of(store, namespace, np.array(prompt, np.int32))
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

    @classmethod
    def of(cls, store: BlockStore, namespace: Namespace, prompt: Tokens) -> "_Case":
        root = store.roots.find(namespace)
        if root is None or not store.may_hit:
            return cls(store, namespace, prompt, root, NO_MATCH)
        owner = store.owners.find(namespace.tenant)
        match = store.matcher.match(root, prompt, owner, partial=store.config.partial_hits)
        return cls(store, namespace, prompt, root, match)

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
    roots = [store.roots.key_of(case.namespace), *store.roots.retired_keys(case.namespace)]
    for root in roots:
        ghost = store.ghosts.find(case.key_under(root))
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
    for root in case.store.roots.siblings(case.namespace):
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


def _identity(case: _Case) -> tuple[bytes, str, bytes, str]:
    n = case.namespace
    return (n.domain, n.adapter, n.adapter_digest, n.salt)


def _differs(case: _Case) -> Explanation | None:
    """Say which token sets the prompt apart from the nearest block of the same tenant."""
    if case.root is None:
        return None
    pool, offset = case.store.pool, case.full_tokens
    owner = case.store.owners.find(case.namespace.tenant)
    nearest, length = ops.NONE, -1
    for seen, block in enumerate(pool.children(end_of(case.match.blocks, case.root))):
        if seen == _SIBLINGS:
            break
        if pool.meta[block, ops.OWNER] == owner:
            same = pool.common_prefix(block, case.prompt, offset)
            if same > length:
                nearest, length = block, same
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
