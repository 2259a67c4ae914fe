import pytest
from support.api import ADMIN, ADMIN_KEY, Api, chat_body, served_api, tenant_store

from stemkv.engine.api.auth import check_bind
from stemkv.engine.config import ConfigError
from stemkv.engine.tenants import Tenant, TenantStoreError

KEYS = {"key-a": Tenant("a"), "key-off": Tenant("off", enabled=False)}
CHAT = "/v1/chat/completions"
ADMIN_PATHS = [
    ("GET", "/admin/v1/cache"),
    ("GET", "/admin/v1/cache/blocks"),
    ("GET", "/admin/v1/cache/blocks/" + "0" * 32),
    ("POST", "/admin/v1/cache/flush"),
    ("POST", "/admin/v1/cache/explain"),
    ("POST", "/admin/v1/cache/locate"),
    ("GET", "/admin/v1/audit"),
    ("GET", "/admin/v1/nothing"),
    ("GET", "/admin"),
    ("GET", "/metrics"),
]


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "missing_api_key"),
        ({"authorization": "Bearer"}, 401, "missing_api_key"),
        ({"authorization": "Bearer  "}, 401, "missing_api_key"),
        ({"authorization": "Basic key-a"}, 401, "missing_api_key"),
        (_bearer("key-b"), 401, "invalid_api_key"),
        (_bearer("KEY-A"), 401, "invalid_api_key"),
        (_bearer("key-\xff"), 401, "invalid_api_key"),
        (_bearer("key-off"), 403, "tenant_disabled"),
        (_bearer(ADMIN_KEY), 403, "not_a_tenant_key"),
        (_bearer("key-a"), 200, None),
        ({"authorization": "bearer key-a"}, 200, None),
    ],
)
async def test_a_tenants_key_opens_its_endpoints(
    headers: dict[str, str], status: int, code: str | None
) -> None:
    """Only a known tenant's key is let in; each refusal says which kind it is."""
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    async with served_api(KEYS) as api:
        response = await api.http.post(CHAT, json=chat_body(), headers=encoded)
        assert response.status_code == status, response.text
        if code is not None:
            assert response.json()["error"]["code"] == code
            assert "key-" not in response.text.replace("API key", "")
            assert not api.engine.submitted
        if status == 401:
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), ADMIN_PATHS)
async def test_the_admin_api_opens_to_the_admin_key_alone(method: str, path: str) -> None:
    """No key is a 401, a wrong one too, a tenant's a 403; the admin's own is let through."""
    async with served_api(KEYS) as api:
        for headers, status in (
            ({}, 401),
            (_bearer("wrong"), 401),
            (_bearer("key-a"), 403),
            (_bearer("key-off"), 403),
        ):
            response = await api.http.request(method, path, headers=headers)
            assert response.status_code == status
            assert response.json()["error"]["code"]
        assert not api.engine.admin_calls
        api.engine.admin_replies.clear()
        response = await api.http.request(method, path, headers=ADMIN)
        assert response.status_code not in (401, 403)


async def test_nothing_is_open_by_mistake() -> None:
    """What no route knows asks for a key before it says so; a body is not read before that."""
    async with served_api(KEYS) as api:
        for path in ("/", "/v1/nothing", "/docs", "//v1/models", "/health/x", "/Admin/v1/cache"):
            assert (await api.http.get(path)).status_code == 401
        response = await api.http.post(CHAT, content=b"{")
        assert response.status_code == 401
        for path in ("/health", "/ready", "/openapi.json"):
            assert (await api.http.get(path)).status_code == 200


async def test_without_tenants_any_key_will_do(api: Api) -> None:
    """On loopback without tenants the key that clients always send is not looked at."""
    for headers in ({}, _bearer("whatever")):
        response = await api.http.post(CHAT, json=chat_body(), headers=headers)
        assert response.status_code == 200
    assert {request.namespace.tenant for request in api.engine.submitted} == {"default"}
    assert (await api.http.get("/metrics")).status_code == 200
    assert (await api.http.get("/admin/v1/cache")).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:9", 200),
        ("127.8.8.8", 200),
        ("[::1]:8000", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("evil.example#localhost", 403),
        ("user@localhost:8000@evil.example", 403),
        ("192.168.0.9", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
async def test_without_tenants_only_local_host_names_are_served(
    api: Api, host: str, status: int
) -> None:
    """A name that a page's owner could have pointed at 127.0.0.1 is refused."""
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CHAT)):
        response = await api.http.request(method, path, json=chat_body(), headers={"host": host})
        assert response.status_code == status, (path, response.text)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
async def test_without_tenants_only_local_pages_are_served(
    api: Api, origin: str, status: int
) -> None:
    """A foreign web page cannot make this machine compute."""
    response = await api.http.post(CHAT, json=chat_body(), headers={"origin": origin})
    assert response.status_code == status


async def test_with_tenants_any_host_name_is_served() -> None:
    """With keys it is the key that counts, whatever name the service is reached by."""
    async with served_api(KEYS, host="0.0.0.0") as api:
        headers = {"host": "llm.example", "origin": "https://x.example", **_bearer("key-a")}
        response = await api.http.post(CHAT, json=chat_body(), headers=headers)
        assert response.status_code == 200


async def test_removing_the_last_tenant_does_not_open_the_service() -> None:
    """A service that others can reach answers nobody once its last tenant is gone."""
    async with served_api(KEYS, host="0.0.0.0") as api:
        for tenant in KEYS.values():
            api.tenants.remove_tenant(tenant.name)
        response = await api.http.post(CHAT, json=chat_body(), headers=_bearer("key-a"))
        assert response.status_code == 401
        assert (await api.http.get("/metrics")).status_code == 401


async def test_the_first_tenant_closes_an_open_service(api: Api) -> None:
    """A tenant that is added while the service runs makes keys necessary from then on."""
    assert (await api.http.get("/v1/models")).status_code == 200
    api.tenants.put_tenant(Tenant("a"))
    assert (await api.http.get("/v1/models")).status_code == 401
    key = api.tenants.add_key("a")
    assert (await api.http.get("/v1/models", headers=_bearer(key))).status_code == 200


async def test_a_store_that_lost_its_tenants_opens_nothing() -> None:
    """A service that has had a tenant, at its start or later, asks for keys until it ends."""
    async with served_api(KEYS) as api:
        api.tenants.remove_tenant("a")
        api.tenants.remove_tenant("off")
        assert (await api.http.get("/v1/models")).status_code == 401
        assert (await api.http.get("/metrics")).status_code == 401
    async with served_api() as api:
        assert (await api.http.get("/v1/models")).status_code == 200
        api.tenants.put_tenant(Tenant("a"))
        assert (await api.http.get("/v1/models")).status_code == 401
        api.tenants.remove_tenant("a")
        assert (await api.http.get("/v1/models")).status_code == 401


async def test_a_store_that_cannot_be_read_opens_nothing(api: Api) -> None:
    """While tenants cannot be read, requests get a 503, and health is still told."""

    def broken() -> bool:
        raise TenantStoreError("the disk is gone")

    api.tenants.empty = broken  # type: ignore[method-assign]
    response = await api.http.get("/v1/models")
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "disk" not in response.text
    assert (await api.http.get("/health")).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.9", "example.com", ""])
def test_a_bind_that_others_reach_needs_keys(host: str) -> None:
    """Without tenants only loopback can be bound; with one, anything."""
    with tenant_store({}) as store:
        with pytest.raises(ConfigError, match="host"):
            check_bind(host, store)
        for local in ("127.0.0.1", "localhost", "::1", "[::1]"):
            check_bind(local, store)
    with tenant_store(KEYS) as store:
        check_bind(host, store)
