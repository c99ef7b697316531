"""A thread that is interrupted at any step of a call to the leases takes nothing from others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy.engine import base, default, result
from sqlalchemy.pool import base as pool_base

from tests.unit.interrupting import interrupt_each
from txn.host import holds, lending
from txn.leases import databases, open_leases, service
from txn.locks.model import exclusive

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

OURS = (databases, holds, lending, service)
ALL = (*OURS, base, default, pool_base, result)


@pytest.mark.parametrize(
    ("modules", "twice", "every"),
    [
        pytest.param(OURS, False, 5, marks=pytest.mark.fast),
        pytest.param(OURS, True, 7, marks=pytest.mark.fast),
        pytest.param(ALL, False, 5, marks=pytest.mark.long),
        pytest.param(ALL, True, 7, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_grab_leaves_the_connection_to_the_next_one(
    tmp_path: Path, modules: Sequence[ModuleType], twice: bool, every: int
) -> None:
    """There is one for each file: after 36 interrupts it was gone, and later grabs hung. SQLAlchemy
    may leave a transaction open, which locks the file."""
    url = f"sqlite:///{tmp_path}/leases.db"
    with open_leases(url) as leases, open_leases(url) as others:

        def act() -> None:
            with suppress(AssertionError, AttributeError):  # of SQLAlchemy, when it cleans up
                leases.grab_lease(exclusive("d/t"), 60)

        def check() -> None:
            leases.drop_lease(leases.grab_lease(exclusive("d/u"), 60))
            others.force_drop_lease(["d"])
            others.drop_lease(others.grab_lease(exclusive("d/t"), 60))

        interrupt_each(modules, act, check, twice=twice, every=every)
    assert not leases.connections._lender.free
