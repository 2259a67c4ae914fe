"""Standing orders: what an engine forgets when it ends, and is told anew by who keeps it.

The store of tenants says what is wanted: quotas, and public prefixes. Each service brings its own
engine to that: at its start, after the engine's restart, and when the store has changed, by
whichever process.
"""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from fastapi import Depends, Request

from stemkv.engine.api.admin_calls import as_bytes, ask, reply_of
from stemkv.engine.api.errors import ApiError, shown
from stemkv.engine.api.prompts import TokenArray
from stemkv.engine.api.service import Service
from stemkv.engine.messages import (
    DeclarePublic,
    ListPublic,
    PublicPrefix,
    SetQuotas,
    WithdrawPublic,
)
from stemkv.engine.public_prefixes import DeclaredPrefix, PrefixNameTakenError
from stemkv.engine.tenants import Tenant, TenantStoreError, group_account
from stemkv.kvstore.namespace import domain_of
from stemkv.kvstore.quotas import Quota, quota_of_group

logger = logging.getLogger(__name__)

# How soon a restarted engine is noticed; costs a comparison each.
_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class AccountQuota:
    """What a tenant by itself, or a sharing group, may hold. name: the account's in reports."""

    name: str
    domain: bytes
    quota: Quota


def quotas_of(tenants: Iterable[Tenant], secret: bytes) -> tuple[AccountQuota, ...]:
    """Return the accounts whose quota is not the one that all have.

    A group has what its enabled members have together; who is disabled has nothing reserved.
    """
    members: dict[tuple[str, str | None], list[Quota]] = defaultdict(list)
    for tenant in tenants:
        if tenant.enabled:
            alone = tenant.name if tenant.group is None else ""
            members[alone, tenant.group].append(tenant.quota)
    usual = Quota()
    accounts = []
    for (name, group), each in members.items():
        quota = each[0] if group is None else quota_of_group(each)
        if quota != usual:
            domain = domain_of(secret, tenant=name, group=group)
            account = group_account(group) if group else name
            accounts.append(AccountQuota(account, domain, quota))
    return tuple(accounts)


@dataclass(frozen=True, slots=True)
class InForce:
    """A public prefix that the engine has been told of.

    key: hex, the engine's name for it, until a flush of everything changes it.
    """

    prefix: DeclaredPrefix
    key: str


@dataclass(slots=True, eq=False)
class StandingOrders:
    """Keeps the engine's quotas and public prefixes as the store of tenants has them.

    problems: what could not be brought about, by what it is about; tried again at each look.
    All methods are called on the event loop.
    """

    service: Service
    problems: dict[str, str] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _engine: int = 0  # which start of the engine the next two are of
    _quotas: tuple[AccountQuota, ...] = ()
    _public: dict[str, InForce] = field(default_factory=dict)
    _tenants: tuple[Tenant, ...] = ()
    _prefixes: tuple[DeclaredPrefix, ...] = ()

    @property
    def quotas(self) -> tuple[AccountQuota, ...]:
        """Quotas in force."""
        return self._quotas

    @property
    def public(self) -> Mapping[str, InForce]:
        """Name -> public prefix in force."""
        return self._public

    @property
    def current(self) -> bool:
        """Whether this engine has been told all that is wanted, as of the last look."""
        return not self.problems and self._engine == self.service.client.starts

    async def run(self) -> None:
        """Look at the engine and at the store again and again; ends by cancellation alone."""
        service = self.service
        next_look = service.clock()
        while True:
            restarted = self._engine != service.client.starts
            if service.client.ready and (restarted or service.clock() >= next_look):
                try:
                    await self.sync()
                except Exception:
                    logger.exception("the engine could not be told quotas and public prefixes")
                    self.problems = {"engine": "It failed at an order; the log has the trace."}
                next_look = service.clock() + service.settings.sync_seconds
            await asyncio.sleep(_TICK_SECONDS)

    async def sync(self) -> None:
        """Tell the engine what has changed; what goes wrong is logged and kept as a problem."""
        async with self._lock:
            await self._sync()

    async def declare(self, name: str, tokens: TokenArray, adapter: str) -> PublicPrefix:
        """Make a prefix public, here at once and for good; raises `ApiError`.

        tokens: int32 [tokens]. Declaring the same again changes nothing.
        """
        service = self.service
        prefix = DeclaredPrefix(
            name=name,
            prompt=as_bytes(tokens),
            fingerprint=service.engine_info().fingerprint,
            text_sha256=await self._text_sha256(tokens),
            created=service.wall_clock(),
            adapter=adapter,
        )
        async with self._lock:
            await self._sync()
            if any(each.name == name and not each.same_as(prefix) for each in self._prefixes):
                raise _taken(name)
            declared = await ask(service, DeclarePublic(prefix.prompt, adapter), PublicPrefix)
            known = self._public.get(name)
            self._public[name] = InForce(prefix, declared.key)
            try:
                await service.ask_tenants(lambda: service.tenants.add_public_prefix(prefix))
            except (ApiError, PrefixNameTakenError) as error:
                if known is None:
                    await self._withdraw(self._public[name])
                    del self._public[name]
                if isinstance(error, PrefixNameTakenError):
                    raise _taken(name) from None
                raise
        return declared

    async def withdraw(self, name: str) -> bool:
        """Let a prefix be public no more; whether this engine knows. Raises `ApiError`."""
        service = self.service
        async with self._lock:
            if not await service.ask_tenants(lambda: service.tenants.remove_public_prefix(name)):
                raise ApiError(
                    404,
                    f"There is no public prefix {shown(name)}; GET /admin/v1/public lists them.",
                    param="name",
                    code="public_prefix_not_found",
                )
            await self._sync()
        return not service.client.ready or name not in self._public

    async def held_public(self) -> dict[str, PublicPrefix]:
        """Ask the engine what it holds of the prefixes in force, by name; raises `ApiError`."""
        async with self._lock:
            self._follow_engine()
            listed = await self._listed()
        return {name: listed[held.key] for name, held in self._public.items()}

    async def _sync(self) -> None:
        if not self.service.client.ready:
            return
        problems: dict[str, str] = {}
        self._follow_engine()
        await self._read(problems)
        wanted = {prefix.name: prefix for prefix in self._prefixes}
        # What is given up first makes room for what comes; reserves go before prefixes, since a
        # refusal concerns all of them, but only one prefix.
        await self._withdraw_others(wanted, problems)
        await self._tell_quotas(problems)
        for name, prefix in wanted.items():
            if name not in self._public:
                await self._declare(prefix, problems)
        self._note(problems)

    def _follow_engine(self) -> None:
        """Forget what an engine was told that is no more."""
        if self._engine != self.service.client.starts:
            self._engine = self.service.client.starts
            self._quotas, self._public = (), {}

    async def _read(self, problems: dict[str, str]) -> None:
        """Read what is wanted; while the store is away, what it last said holds."""
        store = self.service.tenants
        try:
            self._tenants, self._prefixes = await asyncio.to_thread(
                lambda: (store.tenants(), store.public_prefixes())
            )
        except TenantStoreError as error:
            problems["tenants"] = f"They cannot be read: {error}"

    async def _withdraw_others(
        self, wanted: Mapping[str, DeclaredPrefix], problems: dict[str, str]
    ) -> None:
        others = [
            name
            for name, held in self._public.items()
            if name not in wanted or not wanted[name].same_as(held.prefix)
        ]
        for name in others:
            try:
                await self._withdraw(self._public[name])
            except ApiError as error:
                problems[f"public prefix {name}"] = f"Not withdrawn: {error.body.message}"
            else:
                del self._public[name]

    async def _withdraw(self, held: InForce) -> None:
        """Withdraw a prefix in force, unless another name stands for the same blocks."""
        await self._listed()
        keys = [each.key for each in self._public.values()]
        key = self._public[held.prefix.name].key
        if keys.count(key) == 1:
            await reply_of(self.service, WithdrawPublic(key))

    async def _listed(self) -> dict[str, PublicPrefix]:
        """Return what the engine has by key, once each prefix in force is known by its key."""
        listed = {each.key: each for each in await ask(self.service, ListPublic(), tuple)}
        for name, held in self._public.items():
            if held.key not in listed:  # a flush has given it another; to declare it again tells
                call = DeclarePublic(held.prefix.prompt, held.prefix.adapter)
                found = await ask(self.service, call, PublicPrefix)
                listed[found.key] = found
                self._public[name] = InForce(held.prefix, found.key)
        return listed

    async def _tell_quotas(self, problems: dict[str, str]) -> None:
        wanted = quotas_of(self._tenants, self.service.settings.secret)
        if wanted == self._quotas:
            return
        try:
            await reply_of(self.service, SetQuotas({each.domain: each.quota for each in wanted}))
        except ApiError as error:
            problems["quotas"] = f"Not changed: {error.body.message}"
        else:
            self._quotas = wanted
            logger.info("quotas are in force: %d accounts", len(wanted))

    async def _declare(self, prefix: DeclaredPrefix, problems: dict[str, str]) -> None:
        subject = f"public prefix {prefix.name}"
        tokens = np.frombuffer(prefix.prompt, "<i4")
        if prefix.fingerprint != self.service.info().fingerprint:
            problems[subject] = "It was declared for another model; remove it, or declare it anew."
        elif prefix.text_sha256 != await self._text_sha256(tokens):
            problems[subject] = "With this tokenizer it is another text; remove it, or declare it."
        else:
            call = DeclarePublic(prefix.prompt, prefix.adapter)
            try:
                declared = await ask(self.service, call, PublicPrefix)
            except ApiError as error:
                problems[subject] = f"Not declared: {error.body.message}"
            else:
                self._public[prefix.name] = InForce(prefix, declared.key)

    async def _text_sha256(self, tokens: TokenArray) -> bytes:
        text = await self.service.encoder.decode(tokens.tolist())
        return hashlib.sha256(text.encode()).digest()

    def _note(self, problems: dict[str, str]) -> None:
        for subject, text in problems.items():
            if self.problems.get(subject) != text:
                logger.error("%s: %s", subject, text)
        for subject in self.problems.keys() - problems.keys():
            logger.info("%s: in order again", subject)
        self.problems = problems


def orders_of(request: Request) -> StandingOrders:
    """Return the standing orders of the service that a request came to (a FastAPI dependency)."""
    orders = request.app.state.orders
    assert isinstance(orders, StandingOrders)
    return orders


Orders = Annotated[StandingOrders, Depends(orders_of)]


def _taken(name: str) -> ApiError:
    return ApiError(
        409,
        f"name: a public prefix {shown(name)} is there already, of other tokens or for another"
        " model; remove it first.",
        param="name",
        code="name_taken",
    )
