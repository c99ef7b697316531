"""A thread that is interrupted at any step of locking or leasing keeps nobody else out."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.unit.interrupting import interrupt_at_random, interrupt_each
from txn.client.engine import Engine
from txn.clock import poll
from txn.host import holds, lending
from txn.leases import databases, model, open_leases, service
from txn.locks import LockManager, Waiting, exclusive, held, manager, shared
from txn.locks.opening import open_stored
from txn.stores import open_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WAITING = Waiting(deadline_ms=10_000)


def make_manager(engine: Engine, name: str) -> LockManager:
    return open_stored(engine, name=name, lease_ms=60_000)


@pytest.mark.parametrize("twice", [False, True])
def test_interrupted_locks_are_released_at_the_next_contact(twice: bool) -> None:
    """They were held until their manager closed."""
    store = open_store("memory://")
    with Engine(store) as engine, Engine(store) as another, make_manager(another, "two") as two:
        one = make_manager(engine, "one")

        def act() -> None:
            with one.hold(exclusive("d/t"), waiting=WAITING):
                pass

        def check() -> None:
            one.hold(shared("d/u")).release()
            two.hold(exclusive("d/t"), waiting=Waiting(retries=0)).release()
            assert two.locks() == []

        interrupt_each([manager, held], act, check, twice=twice)
        one.close()
    assert poll(lambda: not beats(), 10_000)


def beats() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("txn ")]


def test_a_dropped_lease_is_not_extended(tmp_path: Path) -> None:
    """An interrupt between `hold` and the block left a thread that extended it for ever."""
    with open_leases(f"sqlite:///{tmp_path}/leases.db") as leases:

        def act() -> None:
            with leases.hold(exclusive("d/t"), 0.2):
                pass

        def check() -> None:
            leases.drop_lease(leases.grab_lease(exclusive("d/t"), 1, 10))
            assert poll(lambda: "txn extend lease" not in beats(), 10_000)

        interrupt_each([model, service, held], act, check, every=17, at_least=5)


MODULES = (databases, holds, lending, service)


@pytest.mark.parametrize(("twice", "every"), [(False, 5), (True, 7)])
def test_an_interrupted_grab_leaves_the_connection_to_the_next_one(
    tmp_path: Path, twice: bool, every: int
) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with open_leases(url) as leases, open_leases(url) as others:

        def act() -> None:
            leases.grab_lease(exclusive("d/t"), 60)

        def check() -> None:
            leases.drop_lease(leases.grab_lease(exclusive("d/u"), 60))
            others.force_drop_lease(["d"])
            others.drop_lease(others.grab_lease(exclusive("d/t"), 60))

        interrupt_each(MODULES, act, check, twice=twice, every=every)
    assert not leases.connections._lender.free


@pytest.mark.long
def test_an_interrupt_in_a_driver_leaves_the_file_to_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with open_leases(url) as leases, open_leases(url) as others:
        for seed in range(10):
            interrupt_at_random(lambda: leases.grab_lease(shared("d/t"), 60), times=100, seed=seed)
            began = time.monotonic()
            for each in (leases, others):
                each.force_drop_lease(["d"])
                each.drop_lease(each.grab_lease(exclusive("d/t"), 60))
            assert time.monotonic() - began < 5
