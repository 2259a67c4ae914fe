"""All properties, and which rule of the design is held by which of them."""

from collections.abc import Mapping
from functools import partial

from hypothesis import strategies as st

from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.jit import COMPILES
from stemkv.kvstore.properties import damage, flush_scopes, flush_text, index, isolation, keys
from stemkv.kvstore.properties.faults import FAULTS, audit_finds_the_fault
from stemkv.kvstore.properties.machine import StoreMachine
from stemkv.kvstore.properties.repairs import damage_is_repaired
from stemkv.kvstore.properties.running import Drawn, Property, Setting
from stemkv.kvstore.properties.scene import STORES

RULES: Mapping[int, str] = {
    1: "Keys",
    2: "A hit is verified",
    3: "Tenants",
    4: "Publish after the write",
    5: "Immutable once published",
    6: "Token-granular hits",
    7: "No twins",
    8: "Prefix-closed",
    9: "All or nothing",
    10: "Conservation",
    11: "Quotas",
    12: "Flush",
    13: "Explain",
    14: "Audit",
}
"""The rules of the design document's section on the store, by their numbers there."""

LIMITS: Mapping[int, str] = {
    2: "Hits across processes and tiers: payloads between workers are not built.",
    3: "What the service says in headers, errors, metrics and times is a matter of the engine.",
    12: "Acknowledgement by other workers and flushes missed while cut off need a Redis server.",
    13: "How much would be reused is held; the reason that is given is not.",
    14: "Checksums of published blocks are kept by the runner, which no property starts.",
}
"""What of a rule no property here holds, and why."""

_BLOCK_SIZES = st.integers(1, 5)


def _settings_of(machine: StoreMachine) -> dict[str, Setting]:
    """Say what one example of the state machine runs with."""
    digest = machine.digest
    return {
        "blocks in the pool": machine.config.capacity_blocks,
        "tokens a block": machine.config.block_size,
        "bits of the hash": digest.args[0] if isinstance(digest, partial) else "all",
        "eviction": "by list" if machine.store.order.by_list else "by score",
    }


PROPERTIES: tuple[Property, ...] = (
    Property(
        "store",
        "After any calls the store holds, finds, evicts, counts and answers what a naive model "
        "does; whoever reads the cache through a block table reads its own prefix.",
        tuple(RULES),
        StoreMachine,
        parts={
            "clean": (5, 7, 8, 10, 14),
            "content": (2, 3, 5, 6),
            "counted": (10,),
            "charged": (11,),
            "told": (4, 12),
            "known": (4,),
            "do_flush": (12,),
            "do_set_quotas": (9, 11),
            "do_declare": (3, 9, 11),
            "do_withdraw": (3, 11, 12),
            "do_pin": (8, 9, 11),
            "do_unpin": (8, 11),
            "do_look_up": (1, 2, 3, 6, 13),
            "admit": (2, 3, 4, 6, 8, 9, 10, 11),
            "reserve": (5, 9, 10, 11),
            "fork": (5, 9),
            "extend": (9,),
            "run_step": (5,),
        },
        reach=_settings_of,
    ),
    Property(
        "encoding",
        "Different lists of tagged fields never encode to the same bytes.",
        (1,),
        Drawn(keys.encoding_holds, {"one": keys.FIELDS, "other": keys.FIELDS}),
    ),
    Property(
        "root-keys",
        "Two namespaces have one root key only if all that it is made of is equal.",
        (1, 3),
        Drawn(
            keys.root_keys_tell_contexts_apart,
            {"context": keys.CONTEXTS, "changes": keys.CHANGES},
        ),
    ),
    Property(
        "block-keys",
        "A published block's key is the plain hash of its parent's key and its tokens.",
        (1, 4),
        Drawn(
            keys.published_keys_are_the_chain,
            {
                "hash_function": st.sampled_from(["xxh3_128", "sha256"]),
                "block_size": st.sampled_from([4, 1, 2, 3, 8, 16, 32]),
                "prompt": keys.PROMPTS,
            },
        ),
    ),
    Property(
        "xxh3",
        "The hash inside compiled loops is that of the xxhash package.",
        (1,),
        Drawn(keys.hash_is_the_packages, {"words": keys.WORDS}),
        None if COMPILES else "used only where it is compiled",
    ),
    Property(
        "index",
        "The index finds what was entered and not deleted, and nothing else.",
        (2,),
        Drawn(index.index_agrees_with_a_dict, {"changes": index.CHANGES}),
    ),
    Property(
        "isolation",
        "Nothing is reused but what the same namespace computed and what is public, with any hash "
        "function; partial copies come from the tenant's own blocks.",
        (2, 3, 6),
        Drawn(
            isolation.nobody_reads_anothers,
            {
                "capacity": st.integers(1, 30),
                "block_size": _BLOCK_SIZES,
                "bits": isolation.BITS,
                "declared": isolation.DECLARED,
                "visits": isolation.VISITS,
            },
        ),
    ),
    Property(
        "interference",
        "With room for all, a tenant is answered and told as if it were alone.",
        (3, 13),
        Drawn(
            isolation.a_tenant_sees_itself_alone,
            {"block_size": _BLOCK_SIZES, "visits": isolation.VISITS},
        ),
    ),
    Property(
        "flush-scopes",
        "A flush takes exactly what it names.",
        (12,),
        Drawn(
            flush_scopes.flush_takes_what_it_names,
            {
                "cached": st.lists(flush_scopes.NAMESPACES, min_size=1, max_size=5),
                "kind": st.sampled_from(FlushKind),
                "of": flush_scopes.NAMESPACES,
                "prefix": flush_scopes.PREFIXES,
            },
        ),
    ),
    Property(
        "flush-text",
        "A flush survives the directory's log; other text is refused, and nothing else happens.",
        (12,),
        Drawn(
            flush_text.flush_text_holds,
            {"flush": flush_text.FLUSHES, "damage": flush_text.DAMAGE},
        ),
    ),
    Property(
        "audit-faults",
        "An audit finds each planted fault, and names it.",
        (14,),
        Drawn(
            audit_finds_the_fault,
            {"fault": st.sampled_from(sorted(FAULTS))},
            tuple({"fault": fault} for fault in FAULTS),
        ),
    ),
    Property(
        "audit-damage",
        "Whatever becomes of a store's arrays, an audit ends, and both its halves agree.",
        (14,),
        Drawn(
            damage.halves_agree_on_damage,
            {
                "kind": st.sampled_from(sorted(STORES)),
                "harm": st.lists(damage.HARM, min_size=1, max_size=3),
            },
        ),
    ),
    Property(
        "repair",
        "A repair makes a damaged store whole, and it serves on.",
        (8, 10, 14),
        Drawn(
            damage_is_repaired,
            {
                "kind": st.sampled_from(sorted(STORES)),
                "harm": st.lists(damage.HARM, min_size=1, max_size=8),
            },
        ),
    ),
)
"""What `stemkv audit` runs, in its order."""
