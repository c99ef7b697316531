"""The embedded store on a disk whose flushes fail, and then loses power: see power.c."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import ctypes, json, os, shutil, sys
from txn import Key, Mutation, Policy, TxnError, connect
from txn.client.parts import PartsClient
from txn.tables.kv.lmdb import LmdbStore

power = ctypes.CDLL(None)
KEYS = [Key(row, "d", "x", "A") for row in ("a", "b")]
POLICY = Policy(store_patience_ms=1)  # no second try
number = 0

def make(protocol="six-phase"):
    global number
    number += 1
    path = f"{sys.argv[1]}/{number}"
    engine = connect(f"embedded://{path}", protocol=protocol, policy=POLICY)
    engine.ensure_table("A", ["d"])
    power.power_watch(f"{path}/data.mdb".encode())
    put(engine, 1)
    return path, engine

def put(engine, value, **options):
    return engine.commit([Mutation(key, str(value)) for key in KEYS], **options)

def attempt(work):
    try:
        return type(work()).__name__
    except TxnError as error:
        return type(error).__name__

def cut(path, see):
    shutil.rmtree(f"{path}-cut", ignore_errors=True)
    os.mkdir(f"{path}-cut")
    shutil.copy(f"{path}/format", f"{path}-cut/format")
    shutil.copy(f"{path}/data.mdb.disk", f"{path}-cut/data.mdb")
    engine = connect(f"embedded://{path}-cut")
    try:
        return see(engine)
    finally:
        engine.close()

def values(path):
    return cut(path, lambda e: [cell and int(cell.value) for cell in e.read(KEYS).values()])

def tell(name, *facts):
    print(json.dumps([name, *facts]))

for protocol in ("six-phase", "fenced"):
    for failing in (0b1, 0b10, 0b110, 0b1010, 0b1110):
        path, engine = make(protocol)
        power.power_fail(failing)
        tell("commit", attempt(lambda: put(engine, 2)), values(path))
        power.power_fail(0)
        tell("commit", attempt(lambda: put(engine, 2)), values(path))
        engine.close()

path, engine = make()
power.power_fail(0b1110)
told = attempt(lambda: put(engine, 2, once="token"))
power.power_fail(0b111111)
tell("repeat", told, attempt(lambda: put(engine, 2, once="token")), values(path))
power.power_fail(0)
engine.close()
again = connect(f"embedded://{path}", policy=POLICY)
tell("repeat", told, attempt(lambda: put(again, 2, once="token")), values(path))
again.close()

path, engine = make()
power.power_fail(-1 << 1)
told = attempt(lambda: put(engine, 2, once="token"))
power.power_fail(0)
os.truncate(f"{path}/writer.lock", 0)  # as if the process had died before it noted the failure
tell("repeat", told, attempt(lambda: put(engine, 2, once="token")), values(path))
engine.close()

for ask in ("outcome", "find_committed", "commit"):
    path, engine = make()
    parts = PartsClient(engine)
    whole = parts.begin(once="token")
    stamp = parts.write(whole, 0, 0, [Mutation(key, "2") for key in KEYS])
    power.power_fail(-1 << 4)  # from the second flush of the decision on
    told = attempt(lambda: parts.commit(whole, [1], stamp, ack="decided"))
    power.power_fail(0)
    os.truncate(f"{path}/writer.lock", 0)
    if ask == "outcome":
        found = engine.outcome(whole).name
    elif ask == "find_committed":
        found = attempt(lambda: parts.find_committed("token"))
    else:
        found = attempt(lambda: parts.commit(whole, [1], stamp, ack="decided"))
    tell("parts", told, found.capitalize(), cut(path, lambda e: e.outcome(whole).name))
    engine.close()

path, engine = make()
store = LmdbStore(path)
power.power_fail(0b10)
told = attempt(lambda: store.write(lambda w: w.put(b"\\xf0", b"1")))
for handle in (engine, store):  # as if another process went on
    handle.close()
store = LmdbStore(path)
store.write(lambda w: w.put(b"\\xf0", b"2"), durable=False)
def see(engine):
    return engine.context.store._ordered.read(lambda reader: (reader.get(b"\\xf0") or b"").decode())
tell("next writer", told, cut(path, see))
store.close()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """Return what the script told."""
    folder = tmp_path_factory.mktemp("power")
    shim, source = str(folder / "power.so"), Path(__file__).with_name("power.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", shim, source, "-ldl"], check=True)
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder)]
    environment = os.environ | {"LD_PRELOAD": shim}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def list_told(told: list[list[Any]], name: str) -> list[list[Any]]:
    return [facts for first, *facts in told if first == name]


def test_a_commit_is_acknowledged_only_once_it_is_on_disk(told: list[list[Any]]) -> None:
    """A flush that is repeated without a write succeeds, and flushes nothing."""
    outcomes = list_told(told, "commit")
    assert {outcome for outcome, _ in outcomes} == {
        *("Committed", "CommitOutcomeUnknown", "NotApplied")
    }
    for outcome, left in outcomes:
        assert left == [2, 2] if outcome == "Committed" else left == [1, 1]
    assert all(outcome == "Committed" for outcome, _ in outcomes[1::2])  # the disk is well again


def test_a_repeated_token_is_answered_only_once_its_commit_is_on_disk(
    told: list[list[Any]],
) -> None:
    assert list_told(told, "repeat") == [
        ["CommitOutcomeUnknown", "NotApplied", [1, 1]],
        ["CommitOutcomeUnknown", "Committed", [2, 2]],
        ["CommitOutcomeUnknown", "Committed", [2, 2]],
    ]


def test_an_outcome_that_is_read_is_on_disk(told: list[list[Any]]) -> None:
    assert list_told(told, "parts") == [["CommitOutcomeUnknown", "Committed", "COMMITTED"]] * 3


def test_a_writer_after_a_failed_flush_writes_the_lost_page_anew(told: list[list[Any]]) -> None:
    """Otherwise the second commit after it may overwrite pages that the disk's newest one needs."""
    assert list_told(told, "next writer") == [["MaybeApplied", "1"]]
