import re

from prometheus_client.parser import text_string_to_metric_families
from support.api import ADMIN, Api, chat_body, served_api, text_body

from stemkv.engine.tenants import Tenant


async def _samples(api: Api) -> dict[str, float]:
    """Return the samples of a scrape by name with labels."""
    response = await api.http.get("/metrics", headers=ADMIN)
    assert response.status_code == 200
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_health_answers_whatever_the_engine_does(api: Api) -> None:
    """Health is 200 with the engine's state in the body."""
    for ready, engine in ((True, "ready"), (False, "starting")):
        api.engine.ready = ready
        response = await api.http.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok", "engine": engine})


async def test_ready_follows_the_engine(api: Api) -> None:
    """Ready is 200 while requests are taken and 503 otherwise."""
    assert (await api.http.get("/ready")).status_code == 200
    api.engine.ready = False
    response = await api.http.get("/ready")
    assert response.status_code == 503
    assert response.json()["engine"] == "starting"
    assert response.headers["retry-after"]


async def test_metrics_count_what_clients_got(api: Api) -> None:
    """Requests by route and status, tokens of prompts, caches and answers, and times."""
    for _ in range(2):
        await api.http.post("/v1/completions", json=text_body("abc", max_tokens=4))
    await api.http.post("/v1/chat/completions", json=chat_body(temperature=9))
    samples = await _samples(api)
    label = "[('method', 'POST'), ('route', '%s'), ('status', '%s')]"
    assert samples["stemkv_http_requests_total" + label % ("/v1/completions", 200)] == 2
    assert samples["stemkv_http_requests_total" + label % ("/v1/chat/completions", 400)] == 1
    assert samples["stemkv_prompt_tokens_total[]"] == 8
    assert samples["stemkv_cached_prompt_tokens_total[]"] == 3
    assert samples["stemkv_generated_tokens_total[]"] == 8
    assert samples["stemkv_requests_total[('outcome', 'finished')]"] == 2
    assert samples["stemkv_time_to_first_token_seconds_count[]"] == 2
    assert samples["stemkv_inter_token_latency_seconds_count[]"] == 6
    assert samples["stemkv_request_latency_seconds_count[]"] == 2


async def test_times_are_seconds_of_the_services_clock(api: Api) -> None:
    """What is observed is the time that passed on the injected clock."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5
        return now

    api.app.state.service.clock = clock
    await api.http.post("/v1/completions", json=text_body("abc", max_tokens=3))
    samples = await _samples(api)
    # arrival 0.5, started 1.0, then one reading for each of three tokens and the end
    assert samples["stemkv_time_to_first_token_seconds_sum[]"] == 0.5
    assert samples["stemkv_inter_token_latency_seconds_sum[]"] == 1.0
    assert samples["stemkv_request_latency_seconds_sum[]"] == 2.5


async def test_engine_gauges_come_from_the_engine(api: Api) -> None:
    """Blocks and sequences by state are the engine's figures; without it they are left out."""
    samples = await _samples(api)
    assert samples["stemkv_cache_blocks[('state', 'cached')]"] == 25
    assert samples["stemkv_cache_blocks[('state', 'free')]"] == 60
    assert samples["stemkv_sequences[('state', 'waiting')]"] == 1
    assert samples["stemkv_preemptions_total[]"] == 4
    assert (samples["stemkv_engine_up[]"], samples["stemkv_ready[]"]) == (1, 1)
    api.engine.ready = False
    samples = await _samples(api)
    assert (samples["stemkv_engine_up[]"], samples["stemkv_ready[]"]) == (0, 0)
    assert not any(name.startswith("stemkv_cache_blocks") for name in samples)


async def test_metrics_name_no_tenant_and_no_invented_route() -> None:
    """Labels are of a bounded set, and none says whose the requests were."""
    async with served_api({"key": Tenant("acme")}) as api:
        for path in ("/v1/models", "/v1/a", "/v1/b"):
            await api.http.get(path, headers={"authorization": "Bearer key"})
        await api.http.request("INVENTED", "/v1/c", headers={"authorization": "Bearer key"})
        text = (await api.http.get("/metrics", headers=ADMIN)).text
        assert "acme" not in text
        routes = set(re.findall(r'route="([^"]*)"', text))
        assert routes == {"/v1/models", "none"}
        assert "INVENTED" not in text
