"""Redis away, frozen, restarted, emptied or rolled back: serving goes on, and never hot."""

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from support.flushes import Follower, equal_nonces, flush, keys
from support.redis_directories import LEASE_SECONDS, AdjustableClock, Joiner
from support.redis_server import RedisServer
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

from stemkv.kvstore.directory.protocol import DirectoryUnavailable, WorkerHolding
from stemkv.kvstore.directory.redis_calls import shared_secret
from stemkv.kvstore.flush import FlushKind

LOGGER = "stemkv.kvstore.directory.redis_directory"


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    """Lay a way to `redis_server` that can be cut."""
    proxy = TcpProxy(redis_server.port)
    yield proxy
    proxy.close()


def through(proxy: TcpProxy) -> str:
    """Return the address of Redis behind the proxy."""
    return f"redis://127.0.0.1:{proxy.port}/0"


class Watcher:
    """Sees whether a follower was ever current while a flush was not carried out."""

    def __init__(self, follower: Follower, flush_id: str) -> None:
        self._follower = follower
        self._flush_id = flush_id
        self._stop = threading.Event()
        self.was_hot = False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            # in this order: done before it is looked at does not count as hot
            is_current = self._follower.directory.current
            if is_current and self._flush_id not in [f.flush_id for f in self._follower.done]:
                self.was_hot = True
            time.sleep(0.001)

    def end(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()


def test_cut_off_worker_reads_what_it_missed_before_it_is_current(
    join: Joiner, proxy: TcpProxy
) -> None:
    """A worker that was cut off is not current until it has carried out the flushes it missed."""
    one, two = Follower(join()), Follower(join(url=through(proxy)))
    proxy.cut()
    wait_until(lambda: not two.directory.current)
    wait_until(
        lambda: (
            two.directory.worker
            not in one.directory.acknowledgements(flush().flush_id, wait_seconds=0)
        )
    )
    missed = [flush(FlushKind.TENANT), flush(FlushKind.PREFIX)]
    for order in missed:
        one.order(order)
        assert one.directory.acknowledgements(order.flush_id, wait_seconds=0) == {
            one.directory.worker: True
        }
    watcher = Watcher(two, missed[1].flush_id)
    proxy.mend()
    wait_until(lambda: list(two.directory.pending_flushes()) == missed)
    time.sleep(0.5)
    assert not two.directory.current
    two.follow()
    wait_until(lambda: two.directory.current)
    watcher.end()
    assert not watcher.was_hot
    assert equal_nonces(one.nonces, two.nonces)


def test_lease_is_believed_no_longer_by_the_worker_than_by_others(
    join: Joiner, proxy: TcpProxy
) -> None:
    """A silent cut makes the worker give up its lease before others take it for dead."""
    one, two = join(), join(url=through(proxy))
    wait_until(lambda: two.current)
    proxy.cut()
    while two.worker in one.acknowledgements(flush().flush_id, wait_seconds=0):
        time.sleep(0.005)
    assert not two.current


def test_time_asleep_counts(join: Joiner) -> None:
    """A machine that slept longer than its lease is not current until it has joined again."""
    clock = AdjustableClock()
    one = join(clock=clock)
    wait_until(lambda: one.current)
    clock.ahead_seconds += LEASE_SECONDS
    assert not one.current
    wait_until(lambda: one.current)


def test_frozen_redis(join: Joiner, redis_server: RedisServer) -> None:
    """While Redis is frozen, workers end up not current; when it goes on, all is as before."""
    one, two = Follower(join()), Follower(join())
    one.directory.record(keys(10), ())
    wait_until(lambda: len(two.directory.locate(keys(10))) == 1)
    redis_server.pause()
    wait_until(lambda: not one.directory.current and not two.directory.current)
    with pytest.raises(DirectoryUnavailable):
        one.directory.locate(keys(10))
    with pytest.raises(DirectoryUnavailable):
        one.directory.acknowledgements(flush().flush_id, wait_seconds=0)
    redis_server.resume()
    wait_until(lambda: one.directory.current and two.directory.current)
    wait_until(lambda: two.directory.locate(keys(10)) == (WorkerHolding(one.directory.worker, 10),))
    assert one.follow() == two.follow() == []


def test_durable_restart_heals_and_tells_everything_anew(
    durable_join: Joiner, durable_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis killed and back with its data: one warning, one notice, nothing flushed, all told."""
    caplog.set_level(logging.INFO, LOGGER)
    one, two = Follower(durable_join()), Follower(durable_join())
    one.order(flush())
    wait_until(lambda: len(two.follow()) == 1)
    one.directory.record(keys(10), ())
    durable_redis_server.kill()
    wait_until(lambda: not one.directory.current and not two.directory.current)
    one.directory.record(keys(5, seed=1), keys(1, seed=0))
    time.sleep(0.5)
    durable_redis_server.start()
    wait_until(lambda: one.directory.current and two.directory.current)
    held = keys(5, seed=1) + keys(10)[1:]
    wait_until(lambda: two.directory.locate(held) == (WorkerHolding(one.directory.worker, 14),))
    assert two.directory.locate(keys(1)) == ()
    assert one.follow() == two.follow() == []
    records = [r for r in caplog.records if r.name == LOGGER]
    assert [r.levelname for r in records].count("WARNING") == 2  # one a worker
    assert [r.levelname for r in records].count("INFO") == 2
    order = flush()
    two.order(order)
    wait_until(lambda: one.directory.pending_flushes() == (order,))


def test_emptied_redis_makes_everyone_begin_anew(join: Joiner, redis_server: RedisServer) -> None:
    """When Redis comes back empty, every worker flushes everything, and all agree afterwards."""
    one, two = Follower(join()), Follower(join())
    ordered = [flush(FlushKind.TENANT), flush(FlushKind.SALT, "s"), flush(FlushKind.ADAPTER, "x")]
    for order in ordered:
        one.order(order)
    wait_until(lambda: not two.follow() and len(two.done) == 3)
    old = dict(one.nonces)
    one.directory.record(keys(10), ())
    redis_server.stop()
    redis_server.start()
    for follower in (one, two):
        wait_until(lambda: bool(follower.directory.pending_flushes()))  # noqa: B023 - at once
        time.sleep(0.3)
        assert not follower.directory.current
        assert follower.follow()[0].kind is FlushKind.ALL
        wait_until(lambda: follower.directory.current)  # noqa: B023 - at once
    assert one.nonces["all"] != old["all"]
    assert equal_nonces(one.nonces, two.nonces)
    late = Follower(join())
    assert equal_nonces(late.nonces, one.nonces)
    wait_until(lambda: two.directory.locate(keys(10))[:1] != ())
    order = flush()
    two.order(order)
    wait_until(lambda: len(one.follow()) == 1)


def test_flush_after_an_emptied_redis_waits_for_the_workers_known_before(
    join: Joiner, redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """A worker that is still cut off when Redis has lost its name is not taken for dead at once."""
    one, two = Follower(join()), Follower(join(url=through(proxy)))
    wait_until(lambda: two.directory.worker in one.directory._peers)
    proxy.cut()
    redis_server.stop()
    redis_server.start()
    wait_until(lambda: bool(one.follow()))
    wait_until(lambda: one.directory.current)
    order = flush()
    one.order(order)
    assert one.directory.acknowledgements(order.flush_id, wait_seconds=0) == {
        one.directory.worker: True,
        two.directory.worker: False,
    }
    wait_until(
        lambda: (
            one.directory.acknowledgements(order.flush_id, wait_seconds=0)
            == {one.directory.worker: True}
        )
    )
    assert not two.directory.current


@pytest.mark.parametrize("how", ["trimmed", "rolled back", "unreadable", "number lost"])
def test_a_log_that_does_not_continue_makes_everyone_cold(
    how: str, join: Joiner, redis_server: RedisServer
) -> None:
    """Flushes that may have been missed are answered with a flush of everything, everywhere."""
    one, two = Follower(join()), Follower(join())
    for _ in range(3):
        one.order(flush())
    wait_until(lambda: not two.follow() and len(two.done) == 3)
    old = dict(one.nonces)
    client = redis_server.client()
    if how == "trimmed":
        client.incr("stemkv:d:flush-number")
    elif how == "rolled back":
        client.set("stemkv:d:flush-number", 1)
    elif how == "number lost":
        client.delete("stemkv:d:flush-number")
    else:
        client.incr("stemkv:d:flush-number")
        client.xadd("stemkv:d:flushes", {"n": 4, "flush": '{"v": 99}'})
    followers = (one, two)

    def all_cold() -> bool:
        for follower in followers:
            follower.follow()
        return all(follower.nonces["all"] != old["all"] for follower in followers)

    wait_until(all_cold)

    def settled() -> bool:
        for follower in followers:
            follower.follow()
        return equal_nonces(one.nonces, two.nonces) and all(f.directory.current for f in followers)

    wait_until(settled)
    order = flush()
    two.order(order)
    wait_until(lambda: one.follow() == [order])


def test_start_while_redis_is_away(
    join: Joiner, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that starts without Redis serves cold, and joins with the others' nonces later."""
    one = Follower(join())
    one.order(flush())
    redis_server.stop()
    caplog.set_level(logging.INFO, LOGGER)
    late = Follower(join())
    assert late.nonces == {}
    assert not late.directory.current
    late.directory.record(keys(3), ())
    with pytest.raises(DirectoryUnavailable):
        late.directory.locate(keys(3))
    redis_server.start()

    def settled() -> bool:
        one.follow()
        late.follow()
        return late.directory.current and equal_nonces(one.nonces, late.nonces)

    wait_until(settled)
    wait_until(lambda: len(one.directory.locate(keys(3))) == 1)
    assert set(late.nonces) == {"all", "tenant/" + b"a".ljust(32, b"\0").hex()}


def test_nonces_given_back_reach_who_joined_before(
    join: Joiner, redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """A worker that begins a lost deployment anew still learns the nonces that others kept."""
    one = Follower(join(url=through(proxy)))
    one.order(flush())
    redis_server.stop()
    proxy.cut()
    redis_server.start()
    fresh = Follower(join())
    assert set(fresh.nonces) == {"all"}
    proxy.mend()

    def settled() -> bool:
        one.follow()
        fresh.follow()
        return one.directory.current and equal_nonces(one.nonces, fresh.nonces)

    wait_until(settled)
    assert len(fresh.nonces) == 2
    assert fresh.directory.current


def test_a_flush_that_could_not_be_told_is_told_later(
    durable_join: Joiner, durable_redis_server: RedisServer
) -> None:
    """A flush ordered while Redis is away is an error, and reaches the others when it is back."""
    one, two = Follower(durable_join()), Follower(durable_join())
    durable_redis_server.kill()
    order = flush()
    with pytest.raises(DirectoryUnavailable):
        one.order(order)
    durable_redis_server.start()
    wait_until(lambda: two.directory.pending_flushes() == (order,))

    def settled() -> bool:
        one.follow()
        two.follow()
        return equal_nonces(one.nonces, two.nonces)

    wait_until(settled)
    late = Follower(durable_join())
    assert equal_nonces(late.nonces, one.nonces)


def test_acknowledgements_survive_an_outage(
    durable_join: Joiner, durable_redis_server: RedisServer
) -> None:
    """What was carried out while Redis was away is acknowledged when it is back."""
    one, two = Follower(durable_join()), Follower(durable_join())
    order = flush()
    one.order(order)
    wait_until(lambda: two.directory.pending_flushes() == (order,))
    durable_redis_server.kill()
    wait_until(lambda: not two.directory.current)
    two.follow()
    durable_redis_server.start()
    wait_until(lambda: one.directory.current and two.directory.current)
    told = one.directory.acknowledgements(order.flush_id, wait_seconds=5)
    assert told == {one.directory.worker: True, two.directory.worker: True}


def test_another_secret_at_healing_keeps_the_worker_out(
    join: Joiner, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """If strangers took the deployment over meanwhile, the worker stays cut off, and says so."""
    one = join()
    redis_server.stop()
    wait_until(lambda: not one.current)
    redis_server.start()
    redis_server.client().set("stemkv:d:secret-check", "another")
    wait_until(lambda: any(r.levelname == "ERROR" for r in caplog.records))
    time.sleep(1.0)
    assert not one.current
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert len(errors) == 1
    assert "another secret" in errors[0].getMessage()


def test_a_shared_secret_is_given_back(join: Joiner, redis_server: RedisServer) -> None:
    """A secret that Redis had made is there again after Redis lost it, so new workers can join."""
    secret = shared_secret(redis_server.url, "d")
    one = Follower(join(secret=secret))
    redis_server.stop()
    redis_server.start()
    wait_until(lambda: bool(one.follow()))
    assert shared_secret(redis_server.url, "d") == secret
    join(secret=secret)


def test_close_ends_while_redis_is_away(join: Joiner, redis_server: RedisServer) -> None:
    """Leaving without Redis neither raises nor waits for it."""
    one, two = join(), join()
    redis_server.pause()
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < 5.0
    redis_server.resume()
    redis_server.stop()
    two.close()
