"""Fsck beside live clients: what is being done is never found, and nothing is ever lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event

import pytest

from recovery import Finding, check, repair, summary
from txn import Delete, Engine, Key, Mutation, Some, TxnError, connect

KEYS = [Key(f"row {number // 2}", "d", f"c{number}", "data") for number in range(8)]
CHECKS, COMMITS = 60, 100
HARMLESS = {"undecided", "decided", "aborting", "orphan-lock", "stale-tag"}


def write(engine: Engine, seed: int, stop: Event, done: list[int]) -> None:
    """Change and delete a few hot keys until told to stop, and note each success."""
    random = Random(seed)
    while not stop.is_set():
        mutations = [
            Delete(key) if random.random() < 0.3 else Mutation(key, b"%d" % seed)
            for key in random.sample(KEYS, 3)
        ]
        try:
            engine.commit(mutations, [Some(KEYS[0]) | ~Some(KEYS[0])])
            done.append(seed)
        except TxnError:
            continue


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("grace_ms", "allowed"), [(60_000, set[str]()), (0, HARMLESS)], ids=["checked", "mended"]
)
@pytest.mark.parametrize("kind", ["memory", "embedded"])
def test_fsck_harms_no_live_client(
    kind: str, grace_ms: int, allowed: set[str], tmp_path: Path
) -> None:
    """An operator who sees findings on a healthy store stops looking at them."""
    found: list[Finding] = []
    done: list[int] = []
    stop = Event()
    uri = "memory://" if kind == "memory" else f"embedded://{tmp_path}/store"
    with connect(uri) as engine, ThreadPoolExecutor(3) as threads:
        engine.ensure_table("data", ["d"])
        writers = [threads.submit(write, engine, seed, stop, done) for seed in range(3)]
        checks = 0
        try:
            while checks < CHECKS or len(done) < COMMITS:
                checks += 1
                for finding in check(engine.context, grace_ms=grace_ms, scan=[b"data"]):
                    found.append(finding)
                    if not grace_ms:
                        repair(engine.context, finding)
        finally:
            stop.set()
        for writer in writers:
            writer.result()
        for finding in check(engine.context, grace_ms=0, scan=[b"data"]):
            repair(engine.context, finding)
        assert list(check(engine.context, grace_ms=0, scan=[b"data"])) == []
        assert summary(engine.context, [b"data"]).is_quiet
    assert {finding.kind.value for finding in found} <= allowed
