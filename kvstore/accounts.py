"""Accounts: who is charged with blocks, and what of the pool each may hold (rule 11)."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore import ops, victims
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pool import Pool
from stemkv.kvstore.quotas import OPERATOR, Quota
from stemkv.kvstore.views import AccountCounts

IDLE_SECONDS = 600.0
"""An account that did not use the cache for so long has its reserve as its share."""

_INTEGRATED_SECONDS = 0.01
_DEFAULT = Quota()


@dataclass(slots=True, eq=False)
class Accounts:
    """All accounts, by tenant domain; 0 is the pool's own row, 1 the operator. None ever goes."""

    pool: Pool
    clock: Callable[[], float]
    names: list[str] = field(default_factory=lambda: ["", OPERATOR])
    _by_domain: dict[bytes, int] = field(default_factory=dict)
    _quotas: dict[bytes, Quota] = field(default_factory=dict)
    _block_seconds: "np.ndarray[tuple[int], np.dtype[np.float64]]" = field(
        default_factory=lambda: np.zeros(2)
    )
    _integrated: float = field(init=False)
    _last_uses: "memoryview[float]" = field(init=False)
    _asking: int = 0
    _lost: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Open the operator's account, which may hold what is reserved for it and no more."""
        operator = self.pool.add_account()
        assert operator == self.operator
        self.pool.terms[operator] = 0.0
        self._integrated = self.clock()
        self._last_uses = self.pool.terms.data.cast("B").cast("d")

    @property
    def operator(self) -> int:
        """Number of the account of public prefixes."""
        return 1

    def __len__(self) -> int:
        """How many rows there are, the pool's own included."""
        return len(self.names)

    def find(self, domain: bytes) -> int | None:
        """Return the number of a domain's account, None if it has none."""
        return self._by_domain.get(domain)

    def get(self, namespace: Namespace) -> int:
        """Return the number of a namespace's account, opened if need be."""
        number = self._open(namespace.domain)
        if not self.names[number]:
            self.names[number] = namespace.group or namespace.tenant
        return number

    def use(self, account: int) -> None:
        """Note that an account uses the cache, and add up what has been held until now."""
        now = self.clock()
        self._last_uses[2 * account + victims.LAST_USE] = now
        if now - self._integrated > _INTEGRATED_SECONDS:
            self.integrate(now)

    def pass_time(self) -> None:
        """Add up what has been held until now: what is held is about to change."""
        now = self.clock()
        if now - self._integrated > _INTEGRATED_SECONDS:
            self.integrate(now)

    def integrate(self, now: float) -> None:
        """Add up what has been held until now, as it is held now."""
        seconds = now - self._integrated
        if seconds > 0:
            self._block_seconds += self.pool.accounts[:, ops.HELD] * seconds
            self._integrated = now

    @property
    def used_since(self) -> float:
        """Who used the cache at this time (seconds) or later is not idle."""
        return self.clock() - IDLE_SECONDS

    # --- quotas ------------------------------------------------------------------------------

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """Put quotas in force by domain, in place of all others.

        Raises ValueError if they and what is set aside for the operator are more than the pool;
        nothing has changed then.
        """
        set_aside = int(self.pool.accounts[self.operator, ops.RESERVE])
        self._check({domain: self._blocks(q.reserve) for domain, q in quotas.items()}, set_aside)
        self._quotas = dict(quotas)
        for domain in quotas:
            self._open(domain)
        for domain, number in self._by_domain.items():
            self._put(number, quotas.get(domain, _DEFAULT))

    @property
    def limited(self) -> bool:
        """Whether anything is reserved or capped, so that idle blocks are not there for all."""
        return bool(self._quotas or self.pool.accounts[self.operator, ops.RESERVE])

    def set_aside(self, blocks: int) -> None:
        """Reserve so many blocks for public prefixes; raises ValueError if there is no room."""
        reserves = {d: self._blocks(q.reserve) for d, q in self._quotas.items()}
        self._check(reserves, blocks)
        self.pool.accounts[self.operator, [ops.RESERVE, ops.CAP]] = blocks

    def granted(self, public: int) -> ops.I64:
        """Return reserve and cap of each account as quotas say, int64 [accounts - 1, 2].

        public: how many blocks public prefixes have.
        """
        rows = np.full((len(self) - 1, 2), public, np.int64)
        for domain, number in self._by_domain.items():
            rows[number - 1] = self._terms(self._quotas.get(domain, _DEFAULT))
        return rows

    def restore(self, public: int) -> None:
        """Put into the pool's rows what quotas say; public: blocks of public prefixes."""
        self.pool.accounts[1:, [ops.RESERVE, ops.CAP]] = self.granted(public)

    def gives_room(self, account: int, asking: int) -> bool:
        """Whether less use by one account leaves more for another: beyond its reserve it does."""
        rows = self.pool.accounts
        if victims.in_use(rows, asking) >= rows[asking, ops.CAP]:
            return False
        return bool(victims.in_use(rows, account) > rows[account, ops.RESERVE])

    def is_reserved(self, account: int, blocks: int) -> bool:
        """Whether so many more blocks in use are within an account's reserve."""
        rows = self.pool.accounts
        return bool(
            account and victims.in_use(rows, account) + blocks <= rows[account, ops.RESERVE]
        )

    def limit(self, account: int) -> int:
        """How many blocks an account could have in use if nobody used more than is reserved."""
        rows = self.pool.accounts
        room = self.pool.capacity - int(rows[ops.POOL, ops.OUT])
        room -= int(rows[1:, ops.RESERVE].sum())
        if account:
            room = min(room + int(rows[account, ops.RESERVE]), int(rows[account, ops.CAP]))
        return max(0, room)

    def pins_of(self, account: int) -> int:
        """How many blocks of an account may be pinned."""
        for domain, number in self._by_domain.items():
            if number == account:
                return self._blocks(self._quotas.get(domain, _DEFAULT).pins)
        return 0

    def _check(self, reserves: Mapping[bytes, int], public: int) -> None:
        together = sum(reserves.values()) + public
        if together > self.pool.capacity:
            raise ValueError(
                f"reserve: {together} blocks ({public} of them for public prefixes) are more than "
                f"the pool's {self.pool.capacity}"
            )

    def _blocks(self, share: float) -> int:
        # A share of a share, 0.1 + 0.2 say, must not lose a block to the last bit.
        return int(share * self.pool.capacity + 1e-6)

    def _open(self, domain: bytes) -> int:
        number = self._by_domain.get(domain)
        if number is None:
            number = self.pool.add_account()
            self._last_uses = self.pool.terms.data.cast("B").cast("d")
            self._by_domain[domain] = number
            self.names.append("")
            self._block_seconds = np.append(self._block_seconds, 0.0)
            self._put(number, self._quotas.get(domain, _DEFAULT))
            # A clock may start at 0, and nobody used the cache before that.
            self.pool.terms[number, victims.LAST_USE] = -np.inf
        return number

    def _terms(self, quota: Quota) -> tuple[int, int]:
        return self._blocks(quota.reserve), max(1, self._blocks(quota.cap))

    def _put(self, number: int, quota: Quota) -> None:
        self.pool.accounts[number, [ops.RESERVE, ops.CAP]] = self._terms(quota)
        self.pool.terms[number, victims.WEIGHT] = quota.weight

    # --- reports -----------------------------------------------------------------------------

    def note_asking(self, account: int) -> None:
        """Note for whom evictions are from now on: what they take is added up for it."""
        if account != self._asking:
            self._add_up_losses()
            self._asking = account

    @property
    def lost(self) -> Mapping[tuple[int, int], int]:
        """Blocks that one account lost to eviction for another, by their numbers."""
        self._add_up_losses()
        return self._lost

    def _add_up_losses(self) -> None:
        """Take in what evictions for the account that asked last have taken from each."""
        for account in np.flatnonzero(self.pool.lost).tolist():
            self._lost[account, self._asking] += int(self.pool.lost[account])
        self.pool.lost[:] = 0

    def counts(self) -> dict[str, AccountCounts]:
        """Return what every account holds and has lost, by name; unnamed ones are left out."""
        self.integrate(self.clock())
        floors = np.zeros(len(self), np.int64)
        victims.fair_floors(
            self.pool.accounts, self.pool.terms, self.pool.capacity, 0, self.used_since, floors
        )
        found: dict[str, AccountCounts] = {}
        for number, name in enumerate(self.names):
            row = self.pool.accounts[number].tolist()
            if not name or (number == self.operator and not row[ops.RESERVE]):
                continue
            found[name] = AccountCounts(
                held=row[ops.HELD],
                in_use=row[ops.HELD] - row[ops.CACHED] - row[ops.TAILS] - row[ops.KEPT],
                cached=row[ops.CACHED] + row[ops.TAILS] + row[ops.KEPT],
                pinned=row[ops.KEPT],
                reserve=row[ops.RESERVE],
                cap=row[ops.CAP],
                share=int(floors[number]),
                weight=float(self.pool.terms[number, victims.WEIGHT]),
                block_seconds=float(self._block_seconds[number]),
                evicted_for={
                    self.names[by]: n for (of, by), n in self.lost.items() if of == number
                },
            )
        return found
