"""Locks in a real ZooKeeper, of a thread that is interrupted anywhere: also inside of the driver,
whose own threads must go on."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from kazoo.handlers import utils

from tests.integration.zookeeper import ZooKeeper, zookeeper  # noqa: F401
from tests.unit.interrupting import interrupt_each
from txn.locks import Waiting, exclusive, open_manager
from txn.locks.zookeeper import client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_thread_leaves_the_session_to_others(
    zookeeper: ZooKeeper,  # noqa: F811
) -> None:
    """It left the condition of an answer locked, for which the driver's reader waited for ever."""
    uri = f"zookeeper://{zookeeper.hosts}/tests/{uuid.uuid4().hex}"
    with open_manager(uri) as one, open_manager(uri) as two:

        def act() -> None:
            with one.hold(exclusive("d/t"), waiting=Waiting(deadline_ms=10_000)):
                pass

        def check() -> None:
            began = time.monotonic()
            one.hold(exclusive("d/u")).release()
            two.hold(exclusive("d/t"), waiting=Waiting(deadline_ms=10_000)).release()
            assert time.monotonic() - began < 5

        interrupt_each([utils, client, threading], act, check, every=4)
