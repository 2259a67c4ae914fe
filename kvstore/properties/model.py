"""What a block store must do, written as plainly as can be: lists, dicts and linear scans.

A block here is an object without a number; the pool is a count. Whatever the store's rules leave
open (which physical block is taken) is not modelled; all else is, eviction order included.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.properties.eviction_model import EvictionModel

Tokens = tuple[int, ...]
RootName = tuple[tuple[bytes, str, bytes, str], tuple[int, ...]]
"""A namespace without its tenant, and how often each scope that concerns it was flushed."""


@dataclass(eq=False)
class Block:
    """One block that is not free. parent: a block, or the name of a root."""

    state: str = "private"
    references: int = 1
    pins: int = 0
    parent: "Block | RootName | None" = None
    tokens: Tokens = ()
    owner: str = ""
    key: bytes = b""
    used: int = 0


@dataclass(eq=False)
class Sequence:
    """One open sequence."""

    root: RootName
    namespace: Namespace
    tokens: Tokens
    blocks: list[Block]
    computed: int
    published: int
    prompt_blocks: int
    writes: bool
    reserved: int
    leads: "tuple[Block | RootName, Tokens] | None" = None


@dataclass(eq=False)
class Counts:
    """Counts of one tenant."""

    lookup: int = 0
    full: int = 0
    partial: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class Match:
    """What of a prompt is there."""

    blocks: list[Block]
    partial: Block | None = None
    partial_tokens: int = 0
    leader: int | None = None


@dataclass(eq=False)
class StoreModel:
    """The model. key_of(root, parent key or None, tokens) hashes as the store under test does."""

    config: StoreConfig
    key_of: Callable[[RootName, bytes | None, Tokens], bytes]
    eviction: EvictionModel | None = None
    current: bool = True
    live: list[Block] = field(default_factory=list)
    cached: list[Block] = field(default_factory=list)
    tails: list[Block] = field(default_factory=list)
    index: dict[bytes, Block] = field(default_factory=dict)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    copies: dict[int, tuple[Block, Block, int]] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    flushes: dict[tuple[object, ...], int] = field(default_factory=dict)
    evicted: int = 0
    uses: int = 0

    # --- looking ---

    @property
    def free(self) -> int:
        """How many blocks hold nothing."""
        return self.config.capacity_blocks - len(self.live)

    @property
    def available(self) -> int:
        """How many blocks could be taken."""
        return self.free + len(self.cached) + len(self.tails)

    def root_of(self, ns: Namespace) -> RootName:
        """Name the root of a namespace in its present generation."""
        scopes: list[tuple[object, ...]] = [
            ("all",),
            ("tenant", ns.domain),
            ("adapter", ns.adapter),
        ]
        scopes.append(("salt", ns.domain, ns.salt))
        return (
            (ns.domain, ns.adapter, ns.adapter_digest, ns.salt),
            tuple(self.flushes.get(scope, 0) for scope in scopes),
        )

    def children(self, parent: "Block | RootName | None") -> list[Block]:
        """List the children of a parent, the most recently used first."""
        found = [
            b
            for b in self.live
            if b.state != "private"
            and (b.parent is parent if isinstance(parent, Block) else b.parent == parent)
        ]
        return sorted(found, key=lambda b: -b.used)

    def match(self, ns: Namespace, prompt: Tokens) -> Match:
        """Find a prompt's longest reusable prefix."""
        if not (self.config.prefix_cache and self.current):
            return Match([])
        size = self.config.block_size
        blocks: list[Block] = []
        parent: Block | RootName = self.root_of(ns)
        while True:
            at = len(blocks) * size
            wanted = prompt[at : at + size]
            same = [
                b
                for b in self.children(parent)
                if b.state == "published" and b.tokens == wanted and len(wanted) == size
            ]
            assert len(same) <= 1
            if not same:
                break
            blocks.append(same[0])
            parent = same[0]
        if at == len(prompt):
            return Match(blocks)
        leader = None
        if len(wanted) == size:
            leader = self.leader(parent, wanted)
        partial, n = self.best_partial(parent, prompt[at:], ns.tenant)
        if not self.config.partial_hits:
            partial, n = None, 0
        return Match(blocks, partial, n, leader)

    def leader(self, parent: Block | RootName, tokens: Tokens) -> int | None:
        """Who computes this child of this parent."""
        for number, s in self.sequences.items():
            if s.leads is not None and _same(s.leads[0], parent) and s.leads[1] == tokens:
                return number
        return None

    def best_partial(
        self, parent: Block | RootName, rest: Tokens, owner: str
    ) -> tuple[Block | None, int]:
        """Return the child of this owner with the longest common prefix with rest."""
        best, length = None, 0
        for child in self.children(parent)[:32]:
            n = _common(child.tokens, rest)
            if child.owner == owner and n > length:
                best, length = child, n
        return best, length

    # --- holding ---

    def hold(self, block: Block, *, pin: bool = False) -> None:
        """Add a reference or a pin."""
        if block in self.cached:
            self.cached.remove(block)
        if block in self.tails:
            self.tails.remove(block)
        if pin:
            block.pins += 1
        else:
            block.references += 1
        if block.state != "private":
            self.uses += 1
            block.used = self.uses

    def let_go(self, block: Block, *, pin: bool = False) -> None:
        """Drop a reference or a pin."""
        if pin:
            block.pins -= 1
        else:
            block.references -= 1
        if block.references == 0 and block.pins == 0:
            self.park(block)

    def park(self, block: Block) -> None:
        """Put a block that nothing holds where it can be taken from."""
        if block.state == "published":
            self.cached.append(block)
        elif block.state == "tail":
            self.tails.append(block)
        else:
            self.live.remove(block)

    def take(self, wanted: int) -> list[Block]:
        """Take blocks: free ones, then tails, then published ones, the oldest first."""
        for _ in range(wanted - self.free):
            victim = self.next_victim()
            assert not self.children(victim), "a parent goes before its child"
            self.forget(victim)
            self.evicted += 1
            self.counts[victim.owner].evicted += 1
        taken = [Block() for _ in range(wanted)]
        self.live += taken
        return taken

    def next_victim(self) -> Block:
        """Return who goes next: tails by age, then leaves by score, or all by age."""
        eviction = self.eviction
        if self.tails or eviction is None:
            return (self.tails or self.cached)[0]
        leaves = [b for b in self.cached if not self.children(b)]
        return min(leaves, key=lambda b: eviction.rank(b.key))

    def tidy(self) -> None:
        """Evict until so many blocks are free as the store is to keep free."""
        wanted = min(self.config.keep_free, self.available)
        for block in self.take(wanted) if wanted > self.free else ():
            self.live.remove(block)

    def forget(self, block: Block) -> None:
        """Take a block out of everything but the hands that hold it."""
        if block.state == "published":
            del self.index[block.key]
        if block in self.cached:
            self.cached.remove(block)
        if block in self.tails:
            self.tails.remove(block)
        block.state, block.parent = "private", None
        if block.references == 0 and block.pins == 0:
            self.live.remove(block)

    # --- sequences ---

    def admit(self, ns: Namespace, prompt: Tokens, read: bool) -> Match | tuple[object, ...]:
        """Say what an admission finds: a leader, a shortage, or what it adopts."""
        match = self.match(ns, prompt) if read else Match([])
        if match.leader is not None:
            return ("following", match.leader)
        if len(self.sequences) == self.config.max_sequences:
            return ("shortage", "sequences", 1, 0)
        needed = -(-len(prompt) // self.config.block_size) - len(match.blocks)
        taken = sum(_idle(b) for b in match.blocks)
        if match.partial is not None and needed + taken + _idle(match.partial) > self.available:
            match = Match(match.blocks)
        if needed + taken > self.available:
            return ("shortage", "blocks", needed, self.available - taken)
        return match

    def open(self, number: int, ns: Namespace, prompt: Tokens, match: Match, write: bool) -> None:
        """Open a sequence with what `admit` found."""
        size = self.config.block_size
        counts = self.counts.setdefault(ns.tenant, Counts())
        counts.lookup += len(prompt)
        reused = len(match.blocks) * size + match.partial_tokens
        run_again = int(reused == len(prompt))
        counts.full += len(match.blocks) * size - (run_again if not match.partial_tokens else 0)
        counts.partial += match.partial_tokens - (run_again if match.partial_tokens else 0)
        for block in match.blocks:
            self.hold(block)
        if match.partial is not None:
            self.hold(match.partial, pin=True)
        fresh = self.take(-(-len(prompt) // size) - len(match.blocks))
        if match.partial is not None:
            self.copies[id(fresh[0])] = (match.partial, fresh[0], match.partial_tokens)
        s = Sequence(
            root=self.root_of(ns),
            namespace=ns,
            tokens=prompt,
            blocks=[*match.blocks, *fresh],
            computed=len(match.blocks) * size + match.partial_tokens,
            published=len(match.blocks),
            prompt_blocks=len(prompt) // size,
            writes=write and self.config.prefix_cache,
            reserved=len(prompt),
        )
        self.sequences[number] = s
        self.lead(s)

    def fork(self, number: int, child: int) -> None:
        """Open a second sequence on the first one's blocks."""
        s = self.sequences[number]
        s.reserved = s.computed
        for block in s.blocks:
            block.references += 1
        self.sequences[child] = Sequence(
            s.root,
            s.namespace,
            s.tokens,
            list(s.blocks),
            s.computed,
            s.published,
            0,
            s.writes,
            s.computed,
        )

    def reserve(self, number: int, stop: int) -> tuple[object, ...] | None:
        """Make positions up to stop writable, or say what is missing."""
        s = self.sequences[number]
        if stop <= s.reserved:
            return None
        size = self.config.block_size
        touched = range(s.computed // size, -(-stop // size))
        shared = [i for i in touched if i < len(s.blocks) and s.blocks[i].references > 1]
        needed = len(shared) + max(0, len(touched) and touched[-1] + 1 - len(s.blocks))
        if needed > self.available:
            return ("shortage", "blocks", needed, self.available)
        fresh = self.take(needed)
        for i in shared:
            old, new = s.blocks[i], fresh.pop(0)
            s.blocks[i] = new
            old.references -= 1
            filled = s.computed - i * size
            if filled > 0:
                source = self.copies[id(old)][0] if id(old) in self.copies else old
                self.hold(source, pin=True)
                self.copies[id(new)] = (source, new, filled)
        s.blocks += fresh
        s.reserved = stop
        return None

    def commit(self, number: int, computed: int) -> None:
        """Take in that positions below computed are written."""
        s = self.sequences[number]
        s.computed = computed
        size = self.config.block_size
        published = s.published
        while s.writes and (s.published + 1) * size <= computed:
            i = s.published
            block, parent = s.blocks[i], s.blocks[i - 1] if i else s.root
            tokens = s.tokens[i * size : (i + 1) * size]
            above = parent.key if isinstance(parent, Block) else None
            key = self.key_of(s.root, above, tokens)
            twin = self.index.get(key)
            if twin is None:
                self.drop_covered_tail(s, parent, tokens)
                self.enter(block, s, parent, tokens)
                block.state, block.key = "published", key
                self.index[key] = block
            elif _same(twin.parent, parent) and twin.tokens == tokens and self.current:
                self.hold(twin)
                s.blocks[i] = twin
                self.let_go(block)
            else:
                s.writes = False
                break
            s.published += 1
        if s.published > published or not s.writes:
            self.lead(s)

    def enter(self, block: Block, s: Sequence, parent: Block | RootName, tokens: Tokens) -> None:
        """Put a block into the tree."""
        block.parent, block.tokens, block.owner = parent, tokens, s.namespace.tenant
        self.uses += 1
        block.used = self.uses

    def drop_covered_tail(self, s: Sequence, parent: Block | RootName, known: Tokens) -> int:
        """Free the tail that known goes on from; say how much of known is there already."""
        best, same = self.best_partial(parent, known, s.namespace.tenant)
        if best is not None and best.state == "tail" and same == len(best.tokens) < len(known):
            self.forget(best)
            return 0
        return same

    def lead(self, s: Sequence) -> None:
        """Say which block a sequence computes next, if its prompt has one more."""
        s.leads = None
        if s.writes and s.published < s.prompt_blocks:
            size, i = self.config.block_size, s.published
            parent = s.blocks[i - 1] if i else s.root
            tokens = s.tokens[i * size : (i + 1) * size]
            if self.leader(parent, tokens) is None:
                s.leads = (parent, tokens)

    def release(self, number: int) -> None:
        """Close a sequence."""
        s = self.sequences.pop(number)
        self.keep_tail(s)
        for block in s.blocks:
            if block.references == 1 and id(block) in self.copies:
                self.let_go(self.copies.pop(id(block))[0], pin=True)
        if self.eviction is not None:
            held = [b.state == "published" for b in s.blocks[: s.published]] + [False]
            self.eviction.use([b.key for b in s.blocks[: held.index(False)]])
        for block in reversed(s.blocks):
            self.let_go(block)
        self.tidy()

    def keep_tail(self, s: Sequence) -> None:
        """Leave a partly filled last block behind, if that says anything new."""
        i, fill = divmod(s.computed, self.config.block_size)
        if not (s.writes and fill and self.config.partial_hits):
            return
        block, parent = s.blocks[i], s.blocks[i - 1] if i else s.root
        if block.references > 1 or id(block) in self.copies:
            return
        known = s.tokens[i * self.config.block_size : s.computed]
        if self.drop_covered_tail(s, parent, known) < fill:
            self.enter(block, s, parent, known)
            block.state = "tail"

    def settle(self, executed: list[tuple[Block, Block, int]], ran: bool) -> None:
        """Let the sources of a step's copies go."""
        if not ran:
            for s in self.sequences.values():
                if any(block is copy[1] for copy in executed for block in s.blocks):
                    self.silence(s)
        for source, _, _ in reversed(executed):
            self.let_go(source, pin=True)

    def silence(self, s: Sequence) -> None:
        """Let a sequence publish nothing further."""
        s.writes, s.leads = False, None

    # --- flush ---

    def flush(self, flush: Flush) -> list[Block]:
        """Carry out a flush; returns the blocks that went."""
        if flush.kind is FlushKind.PREFIX:
            return self._flush_prefix(flush)
        scope = {
            FlushKind.ALL: ("all",),
            FlushKind.TENANT: ("tenant", flush.domain),
            FlushKind.ADAPTER: ("adapter", flush.adapter),
            FlushKind.SALT: ("salt", flush.domain, flush.salt),
        }[flush.kind]
        self.flushes[scope] = self.flushes.get(scope, 0) + 1
        for s in self.sequences.values():
            if s.root != self.root_of(s.namespace):
                self.silence(s)
        return self._drop(lambda root, _: not self._alive(root))

    def _alive(self, root: RootName) -> bool:
        (domain, adapter, digest, salt), _ = root
        return root == self.root_of(Namespace("", domain, adapter, digest, salt))

    def _flush_prefix(self, flush: Flush) -> list[Block]:
        ns = Namespace("", flush.domain, flush.adapter, flush.adapter_digest, flush.salt)
        root = self.root_of(ns)
        prefix = tuple(
            int.from_bytes(flush.prefix[i : i + 4], "little")
            for i in range(0, len(flush.prefix), 4)
        )
        for s in self.sequences.values():
            if s.root == root and s.tokens[: len(prefix)] == prefix:
                self.silence(s)
        return self._drop(lambda r, path: r == root and path[: len(prefix)] == prefix)

    def _drop(self, concerns: Callable[[RootName, Tokens], bool]) -> list[Block]:
        gone = [b for b in self.live if b.state != "private" and concerns(*path_of(b))]
        for block in gone:
            self.forget(block)
        return gone


def path_of(block: Block) -> tuple[RootName, Tokens]:
    """Return a block's root and all tokens from there to its end."""
    tokens: Tokens = ()
    at: Block | RootName | None = block
    while isinstance(at, Block):
        tokens, at = at.tokens + tokens, at.parent
    assert at is not None
    return at, tokens


def _same(a: "Block | RootName | None", b: "Block | RootName | None") -> bool:
    return a is b if isinstance(a, Block) or isinstance(b, Block) else a == b


def _common(a: Tokens, b: Tokens) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _idle(block: Block) -> bool:
    return block.references == 0 and block.pins == 0
