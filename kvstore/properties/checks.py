"""Checks that say what they found."""

from stemkv.kvstore.audit import audit
from stemkv.kvstore.store import BlockStore


def assert_clean(store: BlockStore) -> None:
    """Fail with what an audit finds, if it finds anything."""
    violations = audit(store)
    assert violations == (), violations
