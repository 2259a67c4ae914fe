"""Directories without Redis: several stores of one process, and none at all."""

import threading

from support.flushes import Follower, equal_nonces, flush, keys

from stemkv.kvstore.directory.factory import make_directory
from stemkv.kvstore.directory.memory import MemoryDirectory, MemoryHub
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.directory.protocol import Directory, WorkerHolding
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.ids import WorkerId


def pair() -> tuple[MemoryDirectory, MemoryDirectory]:
    """Return two directories that see each other."""
    hub = MemoryHub()
    return MemoryDirectory(hub, WorkerId("one")), MemoryDirectory(hub, WorkerId("two"))


def test_stores_see_each_other() -> None:
    """Each store's leading run is told, longest first, and a store that left is not."""
    one, two = pair()
    prompt = keys(10)
    one.record(prompt[:4], ())
    two.record(prompt, ())
    assert one.locate(prompt) == (WorkerHolding(two.worker, 10), WorkerHolding(one.worker, 4))
    two.record((), prompt[2:3])
    assert one.locate(prompt) == (WorkerHolding(one.worker, 4), WorkerHolding(two.worker, 2))
    assert one.locate(keys(3, seed=9)) == ()
    one.close()
    assert two.locate(prompt) == (WorkerHolding(two.worker, 2),)


def test_flush_reaches_all_and_is_acknowledged() -> None:
    """A flush is pending for the other store until it says that it is done."""
    one, two = (Follower(directory) for directory in pair())
    order = flush()
    one.order(order)
    assert one.directory.pending_flushes() == ()
    assert one.directory.acknowledgements(order.flush_id, wait_seconds=0) == {
        "one": True,
        "two": False,
    }
    waiter = threading.Timer(0.1, two.follow)
    waiter.start()
    told = one.directory.acknowledgements(order.flush_id, wait_seconds=10)
    waiter.join()
    assert told == {"one": True, "two": True}
    assert equal_nonces(one.nonces, two.nonces)


def test_crossing_flushes_end_equal() -> None:
    """Two stores that flush the same scope at once end with the same nonce."""
    one, two = (Follower(directory) for directory in pair())
    one.order(flush(FlushKind.ALL))
    two.order(flush(FlushKind.ALL))
    one.follow()
    two.follow()
    assert equal_nonces(one.nonces, two.nonces)
    assert one.nonces["all"] == two.done[-1].nonce


def test_late_store_takes_the_nonces() -> None:
    """A store that joins later starts with the nonces in force, and with nothing pending."""
    hub = MemoryHub()
    one = Follower(MemoryDirectory(hub))
    for kind in FlushKind:
        one.order(flush(kind))
    late = Follower(MemoryDirectory(hub))
    assert equal_nonces(one.nonces, late.nonces)
    assert len(late.nonces) == 4
    assert late.follow() == []


def test_null_directory_is_silent() -> None:
    """The null directory is current, keeps nothing and asks for nothing."""
    null: Directory = NullDirectory()
    null.record(keys(3), keys(1))
    null.announce(flush())
    null.acknowledge(flush().flush_id)
    assert null.current
    assert null.nonces() == {}
    assert null.pending_flushes() == ()
    assert null.acknowledgements(flush().flush_id, wait_seconds=5) == {}
    assert null.locate(keys(3)) == ()
    null.close()


def test_every_start_has_another_name() -> None:
    """Two workers never have the same name, not even in one process."""
    assert len({NullDirectory().worker for _ in range(100)}) == 100


def test_without_an_address_the_directory_is_in_process() -> None:
    """The factory makes an in-process directory that locates the worker's own blocks."""
    directory = make_directory(
        None, deployment="d", secret=b"s" * 32, fingerprint="f", lease_seconds=1
    )
    assert isinstance(directory, MemoryDirectory)
    directory.record(keys(2), ())
    assert directory.locate(keys(3)) == (WorkerHolding(directory.worker, 2),)
    directory.close()
