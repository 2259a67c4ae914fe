"""Who may ask for what: tenants by their key, the operator by the admin key.

Until there is a tenant the service is open to this machine only: it must be bound to loopback,
takes requests as the tenant "default", and refuses those that a web page could have sent (a foreign
Host, as DNS rebinding makes it, or a foreign Origin). `/metrics` tells how much of all prompts
together was cached, which says something of other tenants; so it needs the admin key, except in
this open mode, where there are none.
"""

import hashlib
import hmac
from enum import Enum, auto
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from stemkv.engine.api.errors import ApiError, shown
from stemkv.engine.api.service import Service
from stemkv.engine.api.settings import is_loopback
from stemkv.engine.config import ConfigError
from stemkv.engine.tenants import Tenant, TenantStore

OPEN_TENANT = Tenant(name="default")
"""Who asks when there are no tenants."""

PUBLIC_PATHS = frozenset({"/health", "/ready", "/openapi.json"})


class Audience(Enum):
    """Who a path is for."""

    ANYONE = auto()
    TENANT = auto()
    ADMIN = auto()
    METRICS = auto()


def audience_of(path: str) -> Audience:
    """Return who a path is for; what is not known is for tenants, so nothing is open by mistake."""
    if path in PUBLIC_PATHS:
        return Audience.ANYONE
    if path == "/metrics":
        return Audience.METRICS
    if path == "/admin" or path.startswith("/admin/"):
        return Audience.ADMIN
    return Audience.TENANT


def check_bind(host: str, tenants: TenantStore) -> None:
    """Refuse (ConfigError) to serve other machines while no tenant has a key."""
    if not is_loopback(host) and tenants.empty():
        raise ConfigError(
            f"host: {host} can be reached from other machines, and no tenant has a key;"
            " add a tenant, or bind to 127.0.0.1"
        )


async def authorize(service: Service, path: str, headers: Headers) -> Tenant | None:
    """Return the tenant that a request speaks for, None where it needs none; raises `ApiError`."""
    audience = audience_of(path)
    if audience is Audience.ANYONE:
        return None
    return await service.ask_tenants(lambda: _authorize(service, audience, headers))


def _authorize(service: Service, audience: Audience, headers: Headers) -> Tenant | None:
    # Looked at until there is a tenant: the first one closes a service that runs, and nothing
    # opens it again, neither the last one's removal nor a store that has lost them.
    is_open = service.settings.loopback and not service.keyed and service.tenants.empty()
    if not is_open:
        service.keyed = True
    if is_open:
        _refuse_web_pages(headers)
    if audience is Audience.METRICS and is_open:
        return None
    if audience is Audience.TENANT:
        return OPEN_TENANT if is_open else _tenant(service, headers)
    _check_admin(service, headers)
    return None


def _tenant(service: Service, headers: Headers) -> Tenant:
    key = _bearer(headers)
    tenant = service.tenants.authenticate(key)
    if tenant is None:
        if _is_admin(service, key):
            raise ApiError(403, "The admin key is no tenant's key.", code="not_a_tenant_key")
        raise _unauthorized("The API key is not known.", code="invalid_api_key")
    if not tenant.enabled:
        raise ApiError(403, "This tenant is disabled.", code="tenant_disabled")
    return tenant


def _check_admin(service: Service, headers: Headers) -> None:
    key = _bearer(headers)
    if _is_admin(service, key):
        return
    if service.tenants.authenticate(key) is not None:
        raise ApiError(403, "A tenant's key does not open this.", code="admin_key_required")
    raise _unauthorized("The admin key is wrong.", code="invalid_admin_key")


def _is_admin(service: Service, key: str) -> bool:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return hmac.compare_digest(digest, service.settings.admin_key_sha256)


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise _unauthorized(
            "A key is needed: send it as Authorization: Bearer KEY.", code="missing_api_key"
        )
    return key.strip()


def _unauthorized(message: str, *, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})


def _refuse_web_pages(headers: Headers) -> None:
    # HTTP/1.0 may leave the host out; no browser does.
    for host in headers.getlist("host"):
        if not _is_local(f"//{host}"):
            raise ApiError(
                403,
                f"The host {shown(host)} is not this machine; without tenants' keys only"
                " localhost is served.",
                code="foreign_host",
            )
    for origin in headers.getlist("origin"):
        if not _is_local(origin):
            raise ApiError(
                403,
                f"The origin {shown(origin)} is not this machine; without tenants' keys only"
                " pages from localhost are served.",
                code="foreign_origin",
            )


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
