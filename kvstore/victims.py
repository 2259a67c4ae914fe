"""Inner loops of eviction: what accounts may keep, whose block goes next, and what dead roots left.

See `ops` for the arrays. An account's `floor` is how many blocks it keeps at least while others
want more. Tails go before published blocks, and of each kind the least recently used.
"""

import numpy as np

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    ACCOUNT,
    CACHED,
    CAP,
    CHARGED,
    DEAD,
    F64,
    FILL,
    FIRST_CHILD,
    FREE,
    FREE_LIST,
    FREED,
    HELD,
    I32,
    I64,
    KEEP,
    KEPT,
    NEXT,
    NONE,
    NOW,
    OPERATOR,
    OUT,
    OWNER,
    PARENT,
    POOL,
    PREV,
    PRIVATE,
    PUBLISHED,
    REF,
    RESERVE,
    ROOT,
    STALE,
    STAMP,
    STATE,
    TAIL,
    TAILS,
    U64,
    Int,
    cached_list,
    charge,
    delete_key,
    is_held,
    link_newest,
    tag_of,
    tail_list,
    tally,
    unlink,
    withdraw,
)

# Columns of terms, float64 [accounts, 2]: how an account shares what is beyond all reserves, and
# when (seconds) it last used the cache.
WEIGHT, LAST_USE = 0, 1

_LOW_31 = 0x7FFFFFFF

# Blocks whose places in the index are read ahead: no more than the nearest cache holds of them.
AHEAD = 64


@compiled
def in_use(accounts: I64, a: Int) -> Int:
    """How many of an account's blocks are held by sequences and copies."""
    held = int(accounts[a, HELD])
    return int(held - accounts[a, CACHED] - accounts[a, TAILS] - accounts[a, KEPT])


@compiled
def available(accounts: I64, capacity: Int, asking: Int) -> tuple[Int, Int]:
    """How many blocks an account could be given, and how many if there were no quotas.

    What others have in use, and what is reserved for them and not in use, is out of its reach; of
    the operator's, what is cached too.
    """
    whole = capacity - accounts[POOL, OUT]
    room = whole
    for a in range(OPERATOR, accounts.shape[0]):
        used = accounts[a, HELD] if a == OPERATOR else in_use(accounts, a)
        whole -= used
        room -= used if a == asking else max(used, accounts[a, RESERVE])
    if asking == OPERATOR:
        room = min(room, accounts[asking, CAP] - accounts[asking, HELD])
    elif asking != POOL:  # an account that is not opened yet has no cap
        room = min(room, accounts[asking, CAP] - in_use(accounts, asking))
    return max(0, room), max(0, whole)


@compiled
def is_active(accounts: I64, terms: F64, a: Int, asking: Int, used_since: float) -> bool:
    """Whether an account uses the cache, or did so lately."""
    return bool(a == asking or in_use(accounts, a) > 0 or terms[a, LAST_USE] >= used_since)


@compiled
def fair_floors(
    accounts: I64, terms: F64, capacity: Int, asking: Int, used_since: float, floors: I64
) -> None:
    """Give each account its reserve, and a share of the rest by weight if it uses the cache.

    An account is idle, with its reserve as its share, if nothing of it is in use and it used the
    cache last before `used_since` (seconds). What would be above a cap is shared by the others.
    """
    beyond = capacity - accounts[POOL, OUT]
    for a in range(1, accounts.shape[0]):
        beyond -= accounts[a, RESERVE]
        floors[a] = NONE
    beyond = max(0, beyond)
    weights, settled = 0.0, False
    while not settled:
        weights, settled, over = 0.0, True, 0
        for a in range(1, accounts.shape[0]):
            if floors[a] == NONE and is_active(accounts, terms, a, asking, used_since):
                weights += terms[a, WEIGHT]
        for a in range(1, accounts.shape[0]):
            if floors[a] != NONE or not is_active(accounts, terms, a, asking, used_since):
                continue
            most = accounts[a, CAP] - accounts[a, RESERVE]
            if weights > 0.0 and np.int64(beyond * (terms[a, WEIGHT] / weights)) > most:
                floors[a] = accounts[a, CAP]
                over += most
                settled = False
        beyond -= over
    for a in range(1, accounts.shape[0]):
        if floors[a] == NONE:
            floors[a] = accounts[a, RESERVE]
            if weights > 0.0 and is_active(accounts, terms, a, asking, used_since):
                floors[a] += np.int64(beyond * (terms[a, WEIGHT] / weights))


@compiled
def lowest_floors(accounts: I64, asking: Int, floors: I64) -> None:
    """Give each account its reserve, and nothing to the one that asks: it may lose all it has."""
    for a in range(1, accounts.shape[0]):
        floors[a] = 0 if a == asking else accounts[a, RESERVE]


@compiled
def own_floors(accounts: I64, asking: Int, floors: I64) -> None:
    """Let nobody but the one that asks lose anything."""
    for a in range(1, accounts.shape[0]):
        floors[a] = 0 if a == asking else accounts[a, HELD]


@compiled
def set_floors(
    phase: Int,
    accounts: I64,
    terms: F64,
    capacity: Int,
    asking: Int,
    used_since: float,
    wanted: Int,
    floors: I64,
) -> None:
    """Say what accounts keep in a phase of eviction: 0 its own, 1 fair shares, 2 reserves."""
    if phase == 0:
        own_floors(accounts, asking, floors)
    elif phase == 1:
        fair_floors(accounts, terms, capacity, asking, used_since, floors)
        # What it is given now counts as held: or a large request would take others' shares.
        given = accounts[POOL, FREED] + wanted
        floors[asking] = max(0, floors[asking] - given)
    else:
        lowest_floors(accounts, asking, floors)


@compiled
def oldest(meta: I32, accounts: I64, floors: I64, kind: Int) -> tuple[Int, Int]:
    """Find whose oldest block of a kind goes next, and how old the next account's oldest is.

    Accounts at their floors are left out. NONE where there is none; ages count lettings-go.
    """
    best, first, second = NONE, NONE, NONE
    for a in range(OPERATOR + 1, accounts.shape[0]):
        if accounts[a, kind] > 0 and accounts[a, HELD] > floors[a]:
            head = -1 - (cached_list(a) if kind == CACHED else tail_list(a))
            age = (accounts[POOL, NOW] - meta[meta[head, NEXT], STAMP]) & _LOW_31
            if age > first:
                best, first, second = a, age, first
            elif age > second:
                second = age
    return best, second


@compiled
def leave(meta: I32, roots: I64, table: I64, keys: U64, b: Int) -> None:
    """Take a block that is on no list out of tree and index."""
    withdraw(meta, roots, table, keys, b)
    meta[b, STATE] = PRIVATE


@compiled
def cut_run(meta: I32, head: Int, most: Int, now: Int, second: Int, out: I32, n: Int) -> Int:
    """Take blocks off the old end of a list into out[n:], one at least; return how many.

    Not more than `most`, and none after the first that is not older than `second`.
    """
    b = np.int64(meta[head, NEXT])
    m = 0
    while m < most and (m == 0 or ((now - meta[b, STAMP]) & _LOW_31) > second):
        out[n + m] = b
        m += 1
        b = np.int64(meta[b, NEXT])
    meta[head, NEXT] = b
    meta[b, PREV] = head
    return m


@compiled
def fetch_entries(table: I64, keys: U64, blocks: I32) -> np.int64:
    """Read where the index has these blocks, for no other use than to have it in the caches.

    The reads do not wait for each other, as those of taking entries out one by one do. What is
    returned must be put somewhere, or the compiler leaves them out.
    """
    mask, read = np.int64(table.shape[0] - 1), np.int64(0)
    for b in blocks:
        read ^= table[tag_of(keys[b, 0]) & mask]
    return read


@compiled
def count_out(roots: I64, accounts: I64, lost: I64, root: Int, kind: Int, blocks: Int) -> None:
    """Count blocks of a root that eviction took: they are nobody's now."""
    tally(roots, accounts, root, kind, -blocks)
    charge(roots, accounts, root, -blocks)
    lost[roots[root, ACCOUNT]] += blocks


@compiled
def evict_oldest(
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    floors: I64,
    kind: Int,
    evicted: I64,
    lost: I64,
    departed: I32,
    left: Int,
    out: I32,
    n: Int,
) -> tuple[Int, Int]:
    """Go on after n victims in out, until it is full or accounts are at their floors.

    departed: the published ones among them, `left` so far. Returns how many of each there are.
    """
    while n < out.shape[0]:
        a, second = oldest(meta, accounts, floors, kind)
        if a == NONE:
            break
        head = -1 - (cached_list(a) if kind == CACHED else tail_list(a))
        now = accounts[POOL, NOW]
        most = min(accounts[a, kind], accounts[a, HELD] - floors[a], out.shape[0] - n, AHEAD)
        m = cut_run(meta, head, most, now, second, out, n)
        if kind == CACHED:
            # Into a place that is written again below.
            departed[left] = fetch_entries(table, keys, out[n : n + m]) & _LOW_31
        run, root = 0, np.int64(meta[out[n], ROOT])
        for b in out[n : n + m]:
            if meta[b, ROOT] != root:
                count_out(roots, accounts, lost, root, kind, run)
                run, root = 0, np.int64(meta[b, ROOT])
            leave(meta, roots, table, keys, b)
            evicted[meta[b, OWNER]] += 1
            if kind == CACHED:
                departed[left] = b
                left += 1
            run += 1
        n += m
        count_out(roots, accounts, lost, root, kind, run)
    return n, left


@compiled
def evict_by_age(
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    terms: F64,
    asking: Int,
    own: Int,
    used_since: float,
    evicted: I64,
    lost: I64,
    departed: I32,
    out: I32,
) -> tuple[Int, Int]:
    """Evict out.size blocks for an account: the first `own` of its own, the rest by fair share.

    Returns how many went (fewer if no more may), and how many of them were published.
    """
    floors = np.empty(accounts.shape[0], np.int64)
    n: Int = 0
    left: Int = 0
    for phase in range(3):
        goal = out[:own] if phase == 0 else out
        if n >= goal.shape[0]:
            continue
        set_floors(phase, accounts, terms, keys.shape[0], asking, used_since, out.shape[0], floors)
        for kind in (TAILS, CACHED):
            n, left = evict_oldest(
                meta,
                roots,
                accounts,
                table,
                keys,
                floors,
                kind,
                evicted,
                lost,
                departed,
                left,
                goal,
                n,
            )
    return n, left


@compiled
def obtainable(accounts: I64, asking: Int) -> Int:
    """How many blocks eviction can get for an account, as long as no pin gives way."""
    n = 0
    for a in range(OPERATOR + 1, accounts.shape[0]):
        idle = accounts[a, CACHED] + accounts[a, TAILS]
        n += idle if a == asking else min(idle, max(0, accounts[a, HELD] - accounts[a, RESERVE]))
    return n


@compiled
def reset(meta: I32, b: Int, root: Int) -> None:
    """Make a block that is out of everything private, with one reference, charged to a root."""
    meta[b, STATE] = PRIVATE
    meta[b, REF] = 1
    meta[b, KEEP] = 0
    meta[b, FILL] = 0
    meta[b, FIRST_CHILD] = NONE
    meta[b, PARENT] = NONE
    meta[b, ROOT] = root


@compiled
def take(meta: I32, roots: I64, accounts: I64, victims: I32, root: Int, out: I32) -> None:
    """Make out.size blocks private with one reference: evicted ones, then free ones.

    Victims beyond those are free.
    """
    n = min(victims.shape[0], out.shape[0])
    out[:n] = victims[:n]
    for i in range(n, victims.shape[0]):
        release(meta, accounts, victims[i])
    head = -1 - FREE_LIST
    for i in range(n, out.shape[0]):
        out[i] = meta[head, NEXT]
        unlink(meta, out[i])
    accounts[POOL, FREED] -= out.shape[0] - n
    for b in out:
        reset(meta, b, root)
    charge(roots, accounts, root, out.shape[0])


@compiled
def release(meta: I32, accounts: I64, b: Int) -> None:
    """Put a block that nobody is charged with on the free list."""
    meta[b, STATE] = FREE
    meta[b, PARENT] = NONE
    meta[b, FIRST_CHILD] = NONE
    meta[b, KEEP] = 0
    link_newest(meta, FREE_LIST, b)
    accounts[POOL, FREED] += 1


@compiled
def release_all(meta: I32, accounts: I64, blocks: I32) -> None:
    """Put evicted blocks on the free list."""
    for b in blocks:
        release(meta, accounts, b)


@compiled
def kill(roots: I64, accounts: I64, root: Int) -> None:
    """Let a root be dead: what nothing holds of it is stale, in the time of one count."""
    account = roots[root, ACCOUNT]
    stale = 0
    for kind in (CACHED, TAILS, KEPT):
        n = roots[root, kind]
        tally(roots, accounts, root, kind, -n)
        stale += n
    accounts[account, HELD] -= stale
    accounts[POOL, STALE] += stale
    roots[root, DEAD] = 1


@compiled
def sweep(
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    start: Int,
    rows: Int,
    departed: I32,
    departed_roots: I32,
) -> tuple[Int, Int]:
    """Free the stale blocks among `rows` rows, from row start on and round.

    departed, departed_roots: the published ones, and whose they were. Returns the row to go on
    from, and how many those are.
    """
    capacity = keys.shape[0]
    left, b = 0, start
    for _ in range(min(rows, capacity)):
        if accounts[POOL, STALE] == 0:
            break
        state = meta[b, STATE]
        if state in (PUBLISHED, TAIL) and roots[meta[b, ROOT], DEAD] != 0 and not is_held(meta, b):
            root = meta[b, ROOT]
            if state == PUBLISHED:
                delete_key(table, keys, b)
                departed[left], departed_roots[left] = b, root
                left += 1
            if meta[b, KEEP] == 0:
                unlink(meta, b)
            roots[root, CHARGED] -= 1
            accounts[POOL, STALE] -= 1
            release(meta, accounts, b)
        b += 1
        if b == capacity:
            b = 0
    return b, left


@compiled
def note_departures(
    ring_low: U64,
    ring_high: U64,
    ring_seconds: F64,
    ring_cause: I32,
    written: Int,
    departed: U64,
    left: Int,
    seconds: float,
    cause: Int,
) -> None:
    """Write the first `left` keys that leave the index into a ring, after the `written` before."""
    capacity = ring_low.shape[0]
    at = written % capacity
    for n in range(left):
        ring_low[at], ring_high[at] = departed[n, 0], departed[n, 1]
        ring_seconds[at] = seconds
        ring_cause[at] = cause
        at += 1
        if at == capacity:
            at = 0


# What `grant` may answer: done; the account may not have so many; or it takes more than a walk
# along the lists (stale blocks to sweep, pins that must give way), and nothing has changed.
GRANTED, REFUSED, ELSEWISE = 0, 1, 2


@compiled
def grant(
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    terms: F64,
    root: Int,
    owner: Int,
    now: float,
    idle_seconds: float,
    evicted: I64,
    lost: I64,
    ring_low: U64,
    ring_high: U64,
    ring_seconds: F64,
    ring_cause: I32,
    written: Int,
    departed: U64,
    losers: I32,
    out: I32,
) -> tuple[Int, Int, Int]:
    """Do in one call what taking out.size blocks for a root comes to as a rule.

    That is `available`, `evict_by_age`, `take` and `note_departures`. departed, losers: get keys
    of the published blocks that go, and their accounts. Returns one of the answers, how many
    blocks were evicted, and how many keys.
    """
    wanted, account = out.shape[0], roots[root, ACCOUNT]
    room, _ = available(accounts, keys.shape[0], account)
    if wanted > room:
        return REFUSED, 0, 0
    own = max(0, accounts[account, HELD] + wanted - accounts[account, CAP])
    evict = max(own, wanted - accounts[POOL, FREED])
    victims = np.empty(max(0, evict), np.int32)
    left: Int = 0
    if evict > 0:
        idle = accounts[account, CACHED] + accounts[account, TAILS]
        if accounts[POOL, STALE] > 0 or idle < own or obtainable(accounts, account) < evict:
            return ELSEWISE, 0, 0
        if evict > wanted:  # after a cap was lowered; there is no room in `departed` for so many
            return ELSEWISE, 0, 0
        published = np.empty(evict, np.int32)
        _, left = evict_by_age(
            meta,
            roots,
            accounts,
            table,
            keys,
            terms,
            account,
            own,
            now - idle_seconds,
            evicted,
            lost,
            published,
            victims,
        )
        for i in range(left):
            b = published[i]
            departed[i, 0], departed[i, 1] = keys[b, 0], keys[b, 1]
            losers[i] = roots[meta[b, ROOT], ACCOUNT]
        note_departures(
            ring_low, ring_high, ring_seconds, ring_cause, written, departed, left, now, owner
        )
    take(meta, roots, accounts, victims, root, out)
    return GRANTED, victims.shape[0], left
