"""`Service`: what every handler needs, made once and passed along."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Request

from stemkv.engine.api.errors import ApiError, unavailable
from stemkv.engine.api.metrics import Metrics
from stemkv.engine.api.prompts import PromptEncoder
from stemkv.engine.api.records import RequestLog
from stemkv.engine.api.settings import ServiceSettings
from stemkv.engine.client import EngineClient, EngineUnavailable
from stemkv.engine.request import EngineInfo
from stemkv.engine.tenants import Tenant, TenantStore, TenantStoreError, group_account
from stemkv.kvstore.namespace import Namespace, domain_of

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Service:
    """The parts of a running service. draining: it is stopping and takes no new requests.

    keyed: there has been a tenant, so a key is asked for from now on: a store that has lost its
    tenants must not open the service to whoever reaches it.
    requests: records of the latest ones. clock: monotonic seconds. wall_clock: unix seconds.
    """

    settings: ServiceSettings
    client: EngineClient
    tenants: TenantStore
    encoder: PromptEncoder
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    keyed: bool = False
    requests: RequestLog = field(init=False)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Make the place for records of requests."""
        self.requests = RequestLog(self.settings.request_records)

    def engine_info(self) -> EngineInfo:
        """Return what is known of the engine; raises a 503 while it takes no requests."""
        if self.draining:
            raise self._stopping()
        if not self.client.ready:
            raise self.engine_down()
        return self.info()

    def info(self) -> EngineInfo:
        """Return what the engine said when it was ready last; raises a 503 before that."""
        try:
            return self.client.info
        except EngineUnavailable:
            raise self.engine_down() from None

    def engine_down(self) -> ApiError:
        """Return the 503 for an engine that died, is being started, or stops with the service."""
        if self.draining:
            return self._stopping()
        return unavailable(
            "The engine is being started; try again.", retry_after=self.settings.restart_seconds
        )

    def _stopping(self) -> ApiError:
        return unavailable(
            "The service is shutting down.",
            retry_after=self.settings.restart_seconds,
            code="shutting_down",
        )

    async def ask_tenants(self, question: Callable[[], T]) -> T:
        """Return what a question to the tenant store gives; raises a 503 if it cannot be asked.

        The store may read a disk or a network, so it is asked in a thread.
        """
        try:
            return await asyncio.to_thread(question)
        except TenantStoreError as error:
            logger.error("the tenants cannot be read: %s", error)
            raise unavailable(
                "The tenants cannot be read at the moment.",
                retry_after=self.settings.restart_seconds,
                code="tenants_unavailable",
            ) from None

    def namespace(self, tenant: Tenant, *, salt: str = "", adapter: str = "") -> Namespace:
        """Return the namespace of a tenant's prompts."""
        domain = domain_of(self.settings.secret, tenant=tenant.name, group=tenant.group)
        return Namespace(
            tenant=tenant.name,
            domain=domain,
            adapter=adapter,
            salt=salt,
            group=group_account(tenant.group) if tenant.group else "",
        )


def service_of(request: Request) -> Service:
    """Return the service that a request came to (a FastAPI dependency)."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
