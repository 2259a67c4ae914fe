"""Workers that see each other through a real Redis."""

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from support.flushes import Follower, equal_nonces, flush, keys
from support.redis_directories import LEASE_SECONDS, SECRET, Joiner
from support.redis_server import RedisServer
from support.waiting import wait_until

from stemkv.kvstore.directory.factory import make_directory
from stemkv.kvstore.directory.protocol import (
    Directory,
    DirectoryMismatch,
    DirectoryUnavailable,
    WorkerHolding,
)
from stemkv.kvstore.directory.redis_calls import shared_secret
from stemkv.kvstore.directory.redis_directory import RedisDirectory
from stemkv.kvstore.flush import FlushKind


def test_workers_see_each_other(join: Joiner) -> None:
    """Each worker's leading run is told, longest first, across batches, and changes are seen."""
    one, two = join(), join()
    prompt = keys(2500)
    one.record(prompt[:4], ())
    two.record(prompt, ())
    both = (WorkerHolding(two.worker, 2500), WorkerHolding(one.worker, 4))
    wait_until(lambda: one.locate(prompt) == both)
    assert two.locate(prompt) == both
    two.record((), prompt[1200:1201])
    wait_until(lambda: one.locate(prompt)[0] == WorkerHolding(two.worker, 1200))
    assert one.locate(keys(3, seed=9)) == ()
    assert one.locate([]) == ()


def test_leaving_takes_everything_along(join: Joiner, redis_server: RedisServer) -> None:
    """A worker that closes leaves neither its blocks nor its name behind."""
    one, two = join(), join()
    two.record(keys(10), ())
    wait_until(lambda: len(one.locate(keys(10))) == 1)
    two.close()
    assert one.locate(keys(10)) == ()
    left = redis_server.client().keys("*")
    assert not [name for name in left if two.worker.encode() in name]
    assert redis_server.client().zrange("stemkv:d:workers", 0, -1) == [one.worker.encode()]
    two.close()


WORKER = textwrap.dedent(
    """
    import sys, time
    from support.flushes import keys
    from stemkv.kvstore.directory.redis_directory import RedisDirectory

    directory = RedisDirectory(sys.argv[1], deployment="d", secret=b"s" * 32,
                               fingerprint="model-1", lease_seconds=float(sys.argv[2]))
    directory.record(keys(100), ())
    print(directory.worker, flush=True)
    time.sleep(600)
    """
)


def start_worker(url: str, lease_seconds: float) -> tuple[subprocess.Popen[str], str]:
    """Start another process that holds 100 blocks; returns it and its name."""
    tests = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, str(lease_seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_killed_worker_leaves_nothing_after_its_lease(
    join: Joiner, redis_server: RedisServer
) -> None:
    """After SIGKILL a worker's blocks are gone when its lease has ended, and not before."""
    here = join()
    process, name = start_worker(redis_server.url, 2.0)
    try:
        wait_until(
            lambda: any(h.worker == name and h.blocks == 100 for h in here.locate(keys(100)))
        )
        time.sleep(2.5)  # it stays as long as it renews its lease
        assert len(here.locate(keys(100))) == 1
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert len(here.locate(keys(100))) == 1
        killed = time.monotonic()
        wait_until(lambda: here.locate(keys(100)) == ())
        assert time.monotonic() - killed < 2.0 + 1.0
        client = redis_server.client()
        wait_until(lambda: not client.exists(f"stemkv:d:held:{name}"), 2)
        wait_until(lambda: client.zscore("stemkv:d:workers", name) is None, 2)
    finally:
        process.kill()
        process.wait(10)


def test_last_worker_leaves_nothing_either(redis_server: RedisServer) -> None:
    """When no worker is left to clean up, Redis itself drops holdings and registry."""
    process, name = start_worker(redis_server.url, 1.0)
    client = redis_server.client()
    try:
        wait_until(lambda: bool(client.exists(f"stemkv:d:held:{name}")))
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: not client.exists(f"stemkv:d:held:{name}", "stemkv:d:workers"), 5)


@pytest.mark.parametrize("kind", list(FlushKind))
def test_flush_reaches_everyone_and_acknowledgements_are_told(
    kind: FlushKind, join: Joiner
) -> None:
    """A flush is pending at every other worker, whole, and who has done it is told."""
    one, two, three = (Follower(join()) for _ in range(3))
    order = flush(kind)
    one.order(order)
    ordered = time.monotonic()
    wait_until(lambda: two.directory.pending_flushes() == (order,))
    assert time.monotonic() - ordered < 1.0
    two.follow()
    names = [follower.directory.worker for follower in (one, two, three)]
    wait_until(
        lambda: (
            one.directory.acknowledgements(order.flush_id, wait_seconds=0)
            == dict(zip(names, (True, True, False), strict=True))
        )
    )
    assert one.directory.pending_flushes() == ()
    assert all(follower.directory.current for follower in (one, two, three))
    waiter = threading.Timer(0.2, three.follow)
    waiter.start()
    told = one.directory.acknowledgements(order.flush_id, wait_seconds=10)
    waiter.join()
    assert told == dict.fromkeys(names, True)
    assert equal_nonces(one.nonces, two.nonces)


def test_acknowledgements_wait_no_longer_than_asked(join: Joiner) -> None:
    """Waiting for a worker that does not answer ends in time and says False."""
    one, two = join(), join()
    order = flush()
    one.announce(order)
    began = time.monotonic()
    told = one.acknowledgements(order.flush_id, wait_seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 2.0
    assert told == {one.worker: True, two.worker: False}


def test_new_worker_has_the_same_roots(join: Joiner) -> None:
    """A worker that joins after flushes starts with their nonces, and with none pending."""
    one = Follower(join())
    for kind in FlushKind:
        one.order(flush(kind))
    late = Follower(join())
    assert set(late.nonces) == set(one.nonces)
    assert equal_nonces(one.nonces, late.nonces)
    assert len(late.nonces) == 4
    time.sleep(0.2)
    assert late.follow() == []
    assert late.directory.current


def test_an_unused_deployment_has_a_nonce_already(join: Joiner) -> None:
    """An empty Redis gives a fresh nonce for all: what was cached before it was lost stays cold."""
    one, two = Follower(join()), Follower(join())
    assert len(one.nonces["all"]) == 16
    assert equal_nonces(one.nonces, two.nonces)


def test_crossing_flushes_end_equal(join: Joiner) -> None:
    """Workers that flush the same scopes at the same time end with the same nonces."""
    followers = [Follower(join()) for _ in range(3)]

    def work(follower: Follower) -> None:
        for n in range(20):
            follower.order(flush(FlushKind.ALL if n % 2 else FlushKind.TENANT))
            follower.follow()

    threads = [threading.Thread(target=work, args=(follower,)) for follower in followers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = Follower(join())

    def settled() -> bool:
        for follower in followers:
            follower.follow()
        return all(equal_nonces(follower.nonces, last.nonces) for follower in followers)

    wait_until(settled)
    last.directory.close()  # it has seen none of them, and would never acknowledge
    for order in followers[0].done:
        told = followers[0].directory.acknowledgements(order.flush_id, wait_seconds=5)
        assert [told[f.directory.worker] for f in followers] == [True] * 3


def test_overflow_is_told_anew(join: Joiner) -> None:
    """More news than the queue may hold ends in the same account as told one by one."""
    one = join(queue_keys=50, batch_keys=20)
    prompt = keys(1000)
    for start in range(0, 1000, 100):
        one.record(prompt[start : start + 100], ())
    one.record((), prompt[900:])
    other = join()
    wait_until(lambda: other.locate(prompt) == (WorkerHolding(one.worker, 900),))


def test_record_never_blocks(join: Joiner, redis_server: RedisServer) -> None:
    """With Redis frozen, what the engine's thread calls at every step returns at once."""
    one = join()
    redis_server.pause()
    time.sleep(0.5)
    began = time.monotonic()
    for n in range(100):
        one.record(keys(100, seed=n), keys(50, seed=n))
        one.pending_flushes()
        one.acknowledge(flush().flush_id)
        _ = one.current
    assert time.monotonic() - began < 0.5
    redis_server.resume()


@pytest.mark.parametrize(
    ("secret", "fingerprint", "text"),
    [(b"x" * 32, "model-1", "another secret"), (SECRET, "model-2", "another fingerprint")],
)
def test_another_secret_or_model_is_refused(
    secret: bytes, fingerprint: str, text: str, join: Joiner
) -> None:
    """A worker with another secret or model does not join, and changes nothing."""
    one = join()
    with pytest.raises(DirectoryMismatch, match=text):
        join(secret=secret, fingerprint=fingerprint)
    assert one.acknowledgements(flush().flush_id, wait_seconds=0).keys() == {one.worker}
    join()


def test_the_secret_is_not_kept_in_redis(join: Joiner, redis_server: RedisServer) -> None:
    """Redis holds a hash of the secret, not the secret, unless it was asked to make one."""
    join()
    client = redis_server.client()
    assert not client.exists("stemkv:d:secret")
    kept = client.get("stemkv:d:secret-check")
    assert kept == hashlib.sha256(b"stemkv/secret-check/1" + SECRET).hexdigest().encode()


def test_shared_secret_is_made_once(join: Joiner, redis_server: RedisServer) -> None:
    """All who ask for the deployment's secret get the same 32 bytes, and can join with it."""
    made = {shared_secret(redis_server.url, "d") for _ in range(5)}
    (secret,) = made
    assert len(secret) == 32
    assert shared_secret(redis_server.url, "other") != secret
    join(secret=secret)
    with pytest.raises(DirectoryMismatch, match="another secret"):
        join(secret=SECRET)
    redis_server.client().set("stemkv:odd:secret", "short")
    with pytest.raises(DirectoryMismatch, match="32 bytes"):
        shared_secret(redis_server.url, "odd")
    with pytest.raises(DirectoryUnavailable):
        shared_secret("redis://127.0.0.1:1/0", "d")


def test_keys_stay_inside_the_deployment(join: Joiner, redis_server: RedisServer) -> None:
    """Everything in Redis is under the deployment's prefix, and only bookkeeping never expires."""
    one = Follower(join())
    one.directory.record(keys(10), ())
    one.order(flush())
    wait_until(lambda: len(one.directory.locate(keys(10))) == 1)
    client = redis_server.client()
    names = client.keys("*")
    assert all(name.startswith(b"stemkv:d:") for name in names)
    lasting = {name.removeprefix(b"stemkv:d:") for name in names if client.ttl(name) == -1}
    assert lasting == {
        b"fingerprint",
        b"secret-check",
        b"epoch",
        b"scopes",
        b"flush-number",
        b"flushes",
    }


def test_factory_and_protocol(redis_server: RedisServer) -> None:
    """The factory makes the Redis directory from an address, and refuses what is none."""
    directory: Directory = make_directory(
        redis_server.url, deployment="d", secret=SECRET, fingerprint="f", lease_seconds=1
    )
    assert isinstance(directory, RedisDirectory)
    directory.close()
    with pytest.raises(ValueError, match="URL"):
        make_directory("nonsense", deployment="d", secret=SECRET, fingerprint="f", lease_seconds=1)


def test_lease_is_kept_over_many_renewals(join: Joiner) -> None:
    """A worker in contact stays current and registered for several leases."""
    one, two = join(), join()
    end = time.monotonic() + 2 * LEASE_SECONDS
    while time.monotonic() < end:
        assert set(two.acknowledgements(flush().flush_id, wait_seconds=0)) == {
            one.worker,
            two.worker,
        }
        time.sleep(0.05)
    wait_until(lambda: one.current and two.current)
