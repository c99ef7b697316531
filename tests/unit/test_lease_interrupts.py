"""A thread that is interrupted at any step of a call to the leases takes nothing from others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.interrupting import interrupt_at_random, interrupt_each
from txn.host import holds, lending
from txn.leases import databases, open_leases, service
from txn.locks.model import exclusive, shared

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MODULES = (databases, holds, lending, service)


@pytest.mark.fast
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
