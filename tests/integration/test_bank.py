"""Real processes on one embedded store, killed at random: money and receipts must add up.

TXN_BANK_KILLS says how many; `make long` kills more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from recovery import check, repair, summary
from tests.integration.bank import ACCOUNTS, BALANCE, TABLE, found_bank, open_bank, receipt
from tests.integration.workers import told
from txn import Engine
from txn.protocol.statuses import ProtocolName

ROOT = Path(__file__).parents[2]
PROCESSES = 4
KILLS = int(os.environ.get("TXN_BANK_KILLS", "50"))
FSCK_GRACE_MS = 300
LONGEST_S = 1200


def total(engine: Engine) -> int:
    """The money, as of one instant."""
    return sum(int(cell.value) for cell in engine.read(ACCOUNTS).values() if cell)


def start(uri: str, seed: int, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.bank", uri, str(seed), str(log)]
    return subprocess.Popen(command, cwd=ROOT)


@contextmanager
def clients(uri: str, log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the processes; at the end, none is left."""
    running = [start(uri, seed, log) for seed in range(PROCESSES)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S + 100)
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_the_bank_survives_its_clients(tmp_path: Path, protocol: ProtocolName) -> None:
    """Many SIGKILLs beside a running fsck: at every atomic read the sum holds, no
    reported commit is lost, and fsck ends clean."""
    uri, log, rng = f"embedded://{tmp_path}/bank", tmp_path / "log", Random(7)
    found_bank(uri, protocol)
    log.touch()
    engine = open_bank(uri)
    kills = reads = repairs = 0
    deadline = time.monotonic() + LONGEST_S
    with clients(uri, log) as running:
        while kills < KILLS and time.monotonic() < deadline:
            seen = log.stat().st_size
            until = time.monotonic() + rng.uniform(0.02, 0.5)
            while time.monotonic() < until or log.stat().st_size == seen:
                assert total(engine) == BALANCE * len(ACCOUNTS)
                reads += 1
                assert time.monotonic() < deadline, "nobody gets on"
            for finding in check(engine.context, grace_ms=FSCK_GRACE_MS):
                repair(engine.context, finding)
                repairs += 1
            victim = rng.randrange(PROCESSES)
            os.kill(running[victim].pid, signal.SIGKILL)
            assert running[victim].wait() == -signal.SIGKILL  # it had not failed by itself
            kills += 1
            running[victim] = start(uri, PROCESSES + kills, log)
    assert kills == KILLS
    assert reads > kills

    for finding in check(engine.context, grace_ms=0, scan=[TABLE.encode()]):
        repair(engine.context, finding)
    assert list(check(engine.context, grace_ms=0, scan=[TABLE.encode()])) == []
    left = summary(engine.context, [TABLE.encode()])
    assert (left.locks, left.tags) == (0, 0)
    assert total(engine) == BALANCE * len(ACCOUNTS)

    reported = [entry["committed"] for entry in told(log)]
    kept = engine.read([receipt(name) for name in reported])
    lost = [key for key, cell in kept.items() if cell is None]
    assert len(reported) > kills
    assert lost == []
    engine.close()
