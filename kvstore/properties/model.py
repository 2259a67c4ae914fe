"""What a block store must do, written as plainly as can be: lists, dicts and linear scans.

A block here is an object without a number; the pool is a count. Whatever the store's rules leave
open (which physical block is taken) is not modelled; all else is, eviction order included.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.properties.eviction_model import EvictionModel
from stemkv.kvstore.properties.shares import Shares
from stemkv.kvstore.quotas import OPERATOR
from stemkv.kvstore.roots import PUBLIC

Tokens = tuple[int, ...]


class RootName(NamedTuple):
    """A namespace without its tenant, and how often each scope that concerns it was flushed.

    above: the public tokens after which a chain enters the namespace.
    """

    identity: tuple[bytes, str, bytes, str]
    flushes: tuple[int, ...]
    above: Tokens = ()


class Chain(NamedTuple):
    """Where a prompt's chain goes: `entry` blocks below `public`, the rest below `root`."""

    root: RootName
    public: RootName | None = None
    entry: int = 0

    def root_of(self, index: int) -> RootName:
        """Return the root that the block of this index hangs on."""
        if index >= self.entry:
            return self.root
        assert self.public is not None
        return self.public


@dataclass(eq=False)
class Block:
    """One block that is not free. parent: a block, or the name of a root.

    account: domain of who is charged. kept: pins. stamp: number of the letting-go that it is idle
    since.
    """

    account: bytes
    state: str = "private"
    references: int = 1
    pins: int = 0
    parent: "Block | RootName | None" = None
    tokens: Tokens = ()
    owner: str = ""
    key: bytes = b""
    used: int = 0
    kept: int = 0
    stamp: int = 0


@dataclass(eq=False)
class Sequence:
    """One open sequence."""

    chain: Chain
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


@dataclass(eq=False)
class Pin:
    """A chain's blocks that are kept until a time (seconds)."""

    number: int
    account: bytes
    blocks: list[Block]
    ends: float
    priority: float


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
    declared: list[tuple[tuple[str, bytes], Tokens]] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    shares: Shares = field(init=False)
    now: float = 0.0
    evicted: int = 0
    uses: int = 0
    lettings: int = 0
    pinnings: int = 0

    def __post_init__(self) -> None:
        """Open the accounts."""
        self.shares = Shares(self.config.capacity_blocks)

    # --- looking ---

    @property
    def free(self) -> int:
        """How many blocks hold nothing."""
        return self.config.capacity_blocks - len(self.live)

    @property
    def in_use(self) -> Counter[bytes]:
        """How many blocks of each account something holds."""
        return Counter(b.account for b in self.live if not _idle(b))

    @property
    def held(self) -> Counter[bytes]:
        """How many blocks each account is charged with."""
        return Counter(b.account for b in self.live)

    @property
    def listed(self) -> Counter[bytes]:
        """How many blocks of each account could be evicted, but for quotas."""
        return Counter(b.account for b in (*self.cached, *self.tails))

    def available(self, account: bytes) -> tuple[int, int]:
        """How many blocks an account could be given, and how many if there were no quotas."""
        # What is public is never evicted: it is out of reach, in use or not.
        return self.shares.available(account, self.in_use | {PUBLIC: self.held[PUBLIC]})

    def shortage(
        self, account: bytes, needed: int, adopted: list[Block]
    ) -> tuple[object, ...] | None:
        """Say what is missing, if anything is, when these blocks are held besides."""
        room, whole = self.available(account)
        needed += sum(_idle(b) and b.account == account for b in adopted)
        if needed <= room:
            return None
        if needed <= whole:
            return ("shortage", "quota", needed, max(0, room))
        return ("shortage", "blocks", needed, max(0, whole))

    def root_of(self, ns: Namespace) -> RootName:
        """Name the root of a namespace in its present generation."""
        scopes: list[tuple[object, ...]] = [
            ("all",),
            ("tenant", ns.domain),
            ("adapter", ns.adapter),
        ]
        scopes.append(("salt", ns.domain, ns.salt))
        return RootName(
            (ns.domain, ns.adapter, ns.adapter_digest, ns.salt),
            tuple(self.flushes.get(scope, 0) for scope in scopes),
        )

    def chain_of(self, ns: Namespace, prompt: Tokens) -> Chain:
        """Say where a prompt's chain goes."""
        size, adapter = self.config.block_size, (ns.adapter, ns.adapter_digest)
        entry = max(
            (
                min(_common(prompt, p) // size, len(p) // size)
                for a, p in self.declared
                if a == adapter
            ),
            default=0,
        )
        root = self.root_of(ns)
        if not entry:
            return Chain(root)
        public = self.root_of(Namespace("", PUBLIC, *adapter))
        return Chain(root._replace(above=prompt[: entry * size]), public, entry)

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
        chain = self.chain_of(ns, prompt)
        parent: Block | RootName = chain.root_of(0)
        while True:
            at = len(blocks) * size
            if len(blocks) == chain.entry:
                parent = chain.root
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
        public = len(blocks) < chain.entry
        owner, end = (OPERATOR, chain.entry * size) if public else (ns.tenant, len(prompt))
        partial, n = self.best_partial(parent, prompt[at:end], owner)
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
        """Add a reference, or (pin) let a copy read it."""
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
        """Drop a reference, or (pin) let a copy read it no more."""
        if pin:
            block.pins -= 1
        else:
            block.references -= 1
        if _idle(block):
            self.park(block)

    def park(self, block: Block) -> None:
        """Put a block that nothing holds where it can be taken from, unless a pin keeps it."""
        block.stamp = self.lettings
        if block.state == "private":
            self.live.remove(block)
        elif not block.kept:
            (self.cached if block.state == "published" else self.tails).append(block)

    def take(self, wanted: int, account: bytes) -> list[Block]:
        """Take blocks for an account: free ones, then what eviction gives."""
        own = max(0, self.held[account] + wanted - self.shares.cap(account))
        if wanted:
            self.evict(max(own, wanted - self.free), own, account)
        assert wanted <= self.free
        taken = [Block(account) for _ in range(wanted)]
        self.live += taken
        return taken

    def evict(self, wanted: int, own: int, account: bytes) -> None:
        """Evict: first `own` of the account's own, then by fair share, then down to reserves."""
        if wanted <= 0:
            return
        shares = self.shares
        while self.listed[account] < own and self.give_way({account}):
            pass
        while shares.obtainable(account, self.listed, self.held) < wanted and self.give_way(
            {account, *(d for d, n in self.held.items() if n > shares.reserve(d))}
        ):
            pass
        given = wanted + self.free
        left = wanted - self._evict_above(shares.own_floors(account, self.held), own, account)
        fair = shares.fair_floors(account, self.in_use, self.now)
        fair[account] = max(0, fair[account] - given)
        left -= self._evict_above(fair, left, account)
        left -= self._evict_above(shares.lowest_floors(account), left, account)
        assert left == 0

    def _evict_above(self, floors: dict[bytes, int], wanted: int, account: bytes) -> int:
        """Evict at most so many blocks of those that hold more than their floors; say how many."""
        done = 0
        # Tails of all first, under these floors.
        for of in (self.tails, self.cached):
            while done < wanted:
                held = self.held
                fit = [b for b in of if b.account != PUBLIC and held[b.account] > floors[b.account]]
                victim = self.next_victim(fit)
                if victim is None:
                    break
                assert not self.children(victim), "a parent goes before its child"
                self.forget(victim)
                self.evicted += 1
                self.counts[victim.owner].evicted += 1
                self.shares.lost[victim.account, account] += 1
                done += 1
        return done

    # --- pins ---

    def pin(self, ns: Namespace, prompt: Tokens, terms: PinTerms) -> Pin | str | None:
        """Pin what is there of a prompt; None if nothing is, "over" if it is too much."""
        chain, match = self.chain_of(ns, prompt), self.match(ns, prompt)
        blocks = match.blocks[chain.entry :][: terms.max_blocks]
        if not blocks:
            return None
        account = ns.domain
        pinned = sum(len(p.blocks) for p in self.pins if p.account == account)
        if pinned + len(blocks) > self.shares.blocks(self.shares.quota(account).pins):
            return "over"
        self.pinnings += 1
        pin = Pin(self.pinnings, account, blocks, self.now + terms.seconds, terms.priority)
        self.pins.append(pin)
        for block in blocks:
            block.kept += 1
            if block in self.cached:
                self.cached.remove(block)
        return pin

    def unpin(self, pin: Pin) -> None:
        """End a pin."""
        self.pins.remove(pin)
        self.lettings += 1
        for block in reversed(pin.blocks):
            block.kept -= 1
            if not block.kept and _idle(block):
                self.park(block)

    def expire(self) -> None:
        """End the pins whose time is over."""
        for pin in [p for p in self.pins if p.ends <= self.now]:
            self.unpin(pin)

    def give_way(self, accounts: set[bytes]) -> bool:
        """End the pin that is worth least among those of some accounts."""
        pins = [p for p in self.pins if p.account in accounts]
        if pins:
            self.unpin(min(pins, key=lambda p: (p.priority, p.ends, p.number)))
        return bool(pins)

    def next_victim(self, fit: list[Block]) -> Block | None:
        """Return who of tails, or of published blocks, goes next: by age, or leaves by score."""
        eviction = self.eviction
        if not fit:
            return None
        if eviction is None or fit[0].state == "tail":
            return min(fit, key=lambda b: (b.stamp, self.shares.number(b.account)))
        leaves = [b for b in fit if not self.children(b)]
        return min(leaves, key=lambda b: eviction.rank(b.key)) if leaves else None

    def tidy(self, account: bytes) -> None:
        """Evict until so many blocks are free as the store is to keep free."""
        obtainable = self.shares.obtainable(account, self.listed, self.held)
        self.evict(min(self.config.keep_free - self.free, obtainable), 0, account)

    def forget(self, block: Block) -> None:
        """Take a block out of everything but the hands that hold it."""
        if block.state == "published":
            del self.index[block.key]
        if block in self.cached:
            self.cached.remove(block)
        if block in self.tails:
            self.tails.remove(block)
        block.state, block.parent, block.kept = "private", None, 0
        if _idle(block):
            self.live.remove(block)
        for pin in tuple(self.pins):
            if block in pin.blocks:
                del pin.blocks[pin.blocks.index(block) :]
                if not pin.blocks:
                    self.pins.remove(pin)

    # --- sequences ---

    def set_aside(self, ns: Namespace, prompt: Tokens, match: Match, write: bool) -> int:
        """How many blocks that a prompt misses are public, with room set aside for them."""
        if not (write and self.config.prefix_cache):
            return 0
        missing = self.chain_of(ns, prompt).entry - len(match.blocks)
        return max(0, min(missing, self.available(PUBLIC)[0]))

    def admit(
        self, ns: Namespace, prompt: Tokens, read: bool, write: bool
    ) -> Match | tuple[object, ...]:
        """Say what an admission finds: a leader, a shortage, or what it adopts."""
        match = self.match(ns, prompt) if read else Match([])
        if match.leader is not None:
            return ("following", match.leader)
        if len(self.sequences) == self.config.max_sequences:
            return ("shortage", "sequences", 1, 0)
        needed = -(-len(prompt) // self.config.block_size) - len(match.blocks)
        needed -= self.set_aside(ns, prompt, match, write)
        if match.partial is not None:
            if self.shortage(ns.domain, needed, [*match.blocks, match.partial]) is None:
                return match
            match = Match(match.blocks)
        return self.shortage(ns.domain, needed, match.blocks) or match

    def open(self, number: int, ns: Namespace, prompt: Tokens, match: Match, write: bool) -> None:
        """Open a sequence with what `admit` found."""
        size = self.config.block_size
        self.shares.open(ns.domain)
        self.shares.last_use[ns.domain] = self.now
        counts = self.counts.setdefault(ns.tenant, Counts())
        counts.lookup += len(prompt)
        reused = len(match.blocks) * size + match.partial_tokens
        run_again = int(reused == len(prompt))
        counts.full += len(match.blocks) * size - (run_again if not match.partial_tokens else 0)
        counts.partial += match.partial_tokens - (run_again if match.partial_tokens else 0)
        public = self.set_aside(ns, prompt, match, write)
        for block in match.blocks:
            self.hold(block)
        if match.partial is not None:
            self.hold(match.partial, pin=True)
        fresh = self.take(-(-len(prompt) // size) - len(match.blocks) - public, ns.domain)
        fresh = [*self.take(public, PUBLIC), *fresh]
        if match.partial is not None:
            self.copies[id(fresh[0])] = (match.partial, fresh[0], match.partial_tokens)
        s = Sequence(
            chain=self.chain_of(ns, prompt),
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
            s.chain,
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
        short = self.shortage(s.namespace.domain, needed, [])
        if short is not None:
            return short
        fresh = self.take(needed, s.namespace.domain)
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
            block, parent = s.blocks[i], self.parent(s, i)
            tokens = s.tokens[i * size : (i + 1) * size]
            above = parent.key if isinstance(parent, Block) else None
            key = self.key_of(s.chain.root_of(i), above, tokens)
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
        if path_of(block)[0].identity[0] == PUBLIC:
            block.owner, block.account = OPERATOR, PUBLIC
        self.uses += 1
        block.used = self.uses

    def drop_covered_tail(self, s: Sequence, parent: Block | RootName, known: Tokens) -> int:
        """Free the tail that known goes on from; say how much of known is there already."""
        root = parent if isinstance(parent, RootName) else path_of(parent)[0]
        owner = OPERATOR if root.identity[0] == PUBLIC else s.namespace.tenant
        best, same = self.best_partial(parent, known, owner)
        if best is not None and best.state == "tail" and same == len(best.tokens) < len(known):
            self.forget(best)
            return 0
        return same

    def lead(self, s: Sequence) -> None:
        """Say which block a sequence computes next, if its prompt has one more."""
        s.leads = None
        if s.writes and s.published < s.prompt_blocks:
            size, i = self.config.block_size, s.published
            parent = self.parent(s, i)
            tokens = s.tokens[i * size : (i + 1) * size]
            if self.leader(parent, tokens) is None:
                s.leads = (parent, tokens)

    def release(self, number: int) -> None:
        """Close a sequence."""
        s = self.sequences.pop(number)
        self.shares.last_use[s.namespace.domain] = self.now
        self.keep_tail(s)
        self.lettings += 1
        for block in s.blocks:
            if block.references == 1 and id(block) in self.copies:
                self.let_go(self.copies.pop(id(block))[0], pin=True)
        if self.eviction is not None:
            held = [b.state == "published" for b in s.blocks[: s.published]] + [False]
            self.eviction.use([b.key for b in s.blocks[: held.index(False)]])
        self.lettings += 1
        for block in reversed(s.blocks):
            self.let_go(block)
        self.tidy(s.namespace.domain)

    def parent(self, s: Sequence, i: int) -> Block | RootName:
        """Return what a sequence's block of this index hangs on."""
        return s.chain.root_of(i) if i in (0, s.chain.entry) else s.blocks[i - 1]

    def keep_tail(self, s: Sequence) -> None:
        """Leave a partly filled last block behind, if that says anything new."""
        i, fill = divmod(s.computed, self.config.block_size)
        if not (s.writes and fill and self.config.partial_hits):
            return
        block, parent = s.blocks[i], self.parent(s, i)
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
        self.lettings += 1
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
            if not self._alive(s.chain.root):
                self.silence(s)
        return self._drop(lambda root, _: not self._alive(root))

    def _alive(self, root: RootName) -> bool:
        return root.flushes == self.root_of(Namespace("", *root.identity)).flushes

    def _flush_prefix(self, flush: Flush) -> list[Block]:
        identity = (flush.domain, flush.adapter, flush.adapter_digest, flush.salt)
        prefix = tuple(
            int.from_bytes(flush.prefix[i : i + 4], "little")
            for i in range(0, len(flush.prefix), 4)
        )
        for s in self.sequences.values():
            if s.chain.root.identity == identity and s.tokens[: len(prefix)] == prefix:
                self.silence(s)
        return self._drop(
            lambda root, path: (
                root.identity == identity and (root.above + path)[: len(prefix)] == prefix
            )
        )

    def withdraw(self, number: int) -> list[Block]:
        """Share the declared prefix of this number no more; returns the blocks that went."""
        adapter, prefix = self.declared.pop(number)
        size = self.config.block_size
        needed = max(
            (_common(prefix, p) // size for a, p in self.declared if a == adapter), default=0
        )
        if needed == len(prefix) // size:
            return []
        end = prefix[: (needed + 1) * size]
        public = self.root_of(Namespace("", PUBLIC, *adapter))

        def concerned(root: RootName, path: Tokens) -> bool:
            below = root.above if root.identity[1:3] == adapter else ()
            whole = path if root == public else below
            # A tail that stands where the first block that goes would is part of it.
            tail = root == public and needed * size < len(path) and end[: len(path)] == path
            return tail or whole[: len(end)] == end

        for s in self.sequences.values():
            if concerned(s.chain.root, ()):
                self.silence(s)
        return self._drop(concerned)

    def public_blocks(self) -> int:
        """How many blocks all declared prefixes have, what they begin with alike counted once."""
        size = self.config.block_size
        return len(
            {(a, p[: i * size]) for a, p in self.declared for i in range(1, len(p) // size + 1)}
        )

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
