"""What the store's state machine draws: namespaces, prompts that meet, hash functions that fail."""

import hashlib
from dataclasses import dataclass

from hypothesis import strategies as st

from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.properties.model import Tokens
from stemkv.kvstore.quotas import Quota

SECRET = b"0123456789abcdef"
MAX_TOKENS = 26

GROUP = domain_of(SECRET, tenant="", group="g")
A, B = (domain_of(SECRET, tenant=name) for name in "ab")
NAMESPACES = (
    Namespace("a", A),
    Namespace("b", B),
    Namespace("c", GROUP, group="g"),
    Namespace("d", GROUP, group="g"),
    Namespace("a", A, salt="s"),
    Namespace("a", A, adapter="x", adapter_digest=b"1"),
    Namespace("d", GROUP, adapter="x", adapter_digest=b"1", salt="s", group="g"),
)


def narrow(bits: int, data: bytes) -> bytes:
    """Hash to 16 bytes of which only the first `bits` bits vary."""
    number = int.from_bytes(hashlib.sha256(data).digest()[:8], "little") % (1 << bits)
    return number.to_bytes(16, "little")


def wide(data: bytes) -> bytes:
    """Hash to 16 bytes, all of them used."""
    return hashlib.sha256(data).digest()[:16]


# Prompts must meet to share: few tokens, long beginnings in common, one namespace above all.
LONG = ((0,) * 20, (0, 1) * 10, (0, 0, 1) * 7)
tokens_ = st.lists(st.integers(0, 1), max_size=5).map(tuple)
namespaces_ = st.sampled_from([*[NAMESPACES[0]] * 6, *NAMESPACES, *NAMESPACES[2:4] * 2])
picks_ = st.sampled_from(range(12))
cuts_ = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16])
shares_ = st.lists(st.sampled_from([3, 3, 3, 2, 1, 0]), min_size=6, max_size=6)
seldom_ = st.sampled_from([False] * 7 + [True])


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    """Draw a quota, often with a reserve of a third or less, so that several fit the pool."""
    reserve = draw(st.sampled_from([0.0, 0.0, 0.1, 0.25, 0.34, 0.5, 1.0]))
    cap = draw(st.sampled_from([1.0, 1.0, 0.75, 0.5, 0.34]))
    weight = draw(st.sampled_from([1.0, 1.0, 0.5, 3.0]))
    return Quota(min(reserve, cap), cap, weight, draw(st.sampled_from([0.25, 0.5, 1.0])))


quotas_ = quotas()

# One rule with weights of our own: hypothesis would spend as much on a flush as on a prompt.
ACTIONS = {
    "serve": 8,
    "fork_and_advance": 4,
    "advance": 5,
    "release": 3,
    "run_step": 5,
    "look_up": 1,
    "fail_step": 1,
    "fork": 1,
    "flush": 2,
    "cut_off": 1,
    "set_quotas": 1,
    "declare": 1,
    "withdraw": 1,
    "pin": 1,
    "unpin": 1,
}


@dataclass(frozen=True)
class Draw:
    """What an action may make use of."""

    ns: Namespace
    pick: int
    cut: int
    suffix: Tokens
    other: Tokens
    more: int
    shares: list[int]
    no_read: bool
    no_write: bool
    crowd: bool
    runs: bool
    stays_cut_off: bool
    kind: FlushKind
    waits: bool
    quotas: dict[bytes, Quota]
    seconds: float
    priority: float


draws_ = st.builds(
    Draw,
    ns=namespaces_,
    pick=picks_,
    cut=cuts_,
    suffix=tokens_,
    other=tokens_,
    more=st.integers(0, 12),
    shares=shares_,
    no_read=seldom_,
    no_write=seldom_,
    crowd=seldom_,
    runs=st.booleans(),
    stays_cut_off=seldom_,
    kind=st.sampled_from([*[FlushKind.PREFIX] * 5, *FlushKind]),
    waits=seldom_,
    quotas=st.dictionaries(st.sampled_from([A, B, GROUP]), quotas_, max_size=3),
    seconds=st.sampled_from([5.0, 30.0, 1000.0]),
    priority=st.sampled_from([1.0, 0.5, 0.0]),
)
