"""Fsck beside live clients: what is being done is never found, and nothing is ever lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from recovery import Finding, check, repair, summary
from txn import Delete, Engine, Key, Mutation, Some, TxnError, connect
from txn.clock import SystemClock

KEYS = [Key(f"row {number // 2}", "d", f"c{number}", "data") for number in range(8)]
SECONDS = 2
ENOUGH = 10  # commits, however long they take
AT_MOST_S = 300


def write(engine: Engine, seed: int, stop: threading.Event, done: list[int]) -> None:
    """Change and delete a few hot keys until told to stop, and note each success. Being aborted is
    part of life."""
    random = Random(seed)
    while not stop.is_set():
        keys = random.sample(KEYS, 3)
        mutations = [
            Delete(key) if random.random() < 0.3 else Mutation(key, b"%d" % seed) for key in keys
        ]
        try:
            engine.commit(mutations, [Some(KEYS[0]) | ~Some(KEYS[0])])
            done.append(seed)
        except TxnError:
            continue


def beside_writers(uri: str, grace_ms: int, mend: bool) -> list[Finding]:
    """Check, and mend, for a while beside three writers; return what was found."""
    found: list[Finding] = []
    done: list[int] = []
    stop = threading.Event()
    with connect(uri) as engine, ThreadPoolExecutor(3) as threads:
        engine.ensure_table("data", ["d"])
        writers = [threads.submit(write, engine, seed, stop, done) for seed in range(3)]
        began_ms = SystemClock().monotonic_ms()

        def is_over() -> bool:
            seconds = SECONDS if len(done) >= ENOUGH else AT_MOST_S
            return SystemClock().monotonic_ms() > began_ms + seconds * 1000

        try:
            while not is_over():
                findings = list(check(engine.context, grace_ms=grace_ms, scan=[b"data"]))
                found += findings
                for finding in findings if mend else ():
                    repair(engine.context, finding)
        finally:
            stop.set()
        for writer in writers:
            writer.result()
        assert len(done) >= ENOUGH
        for finding in check(engine.context, grace_ms=0, scan=[b"data"]):
            repair(engine.context, finding)
        assert list(check(engine.context, grace_ms=0, scan=[b"data"])) == []
        assert summary(engine.context, [b"data"]).is_quiet
    return found


@pytest.mark.parametrize("kind", ["memory", "embedded"])
def test_live_clients_are_never_findings(kind: str, tmp_path: Path) -> None:
    uri = "memory://" if kind == "memory" else f"embedded://{tmp_path}/store"
    assert beside_writers(uri, grace_ms=60_000, mend=False) == []


@pytest.mark.parametrize("kind", ["memory", "embedded"])
def test_mending_without_a_grace_harms_nobody(kind: str, tmp_path: Path) -> None:
    uri = "memory://" if kind == "memory" else f"embedded://{tmp_path}/store"
    found = beside_writers(uri, grace_ms=0, mend=True)
    assert {finding.kind.value for finding in found} <= {
        "undecided",
        "decided",
        "aborting",
        "orphan-lock",
        "stale-tag",
    }
