"""The native store on a real HBase: regions that split, merge and move while batches are under way,
and tables that other programs make as they like."""

from __future__ import annotations

import threading
import time
import uuid
from random import Random

import pytest

from tests.integration.hbase import HBase
from tests.integration.shuffling import Shuffler
from txn import AbortedError, Engine, Key, Mutation, Version, connect
from txn.model import Edit, Family
from txn.protocol.attempt import ProtocolName
from txn.stores import open_store
from txn.stores.hbase.native.store import NativeStore

ACCOUNTS = 200
BALANCE = 100
CLIENTS = 4
BATCH = 10
ROWS = 60_000
HURRY_MS = 60  # half of which a server takes before it says how far it has come


def account(number: int) -> Key:
    return Key(f"account{number:03}", "d", "x")


def transfer_many(engine: Engine, chance: Random) -> int:
    """Commit transfers together; return how many were committed. Anything but a conflict fails."""
    keys = [account(number) for number in chance.sample(range(ACCOUNTS), 2 * BATCH)]
    cells = engine.read(keys)
    requests = []
    for payer, payee in zip(keys[::2], keys[1::2], strict=True):
        mutations, versions = [], []
        for key, by in ((payer, -1), (payee, 1)):
            cell = cells[key]
            assert cell is not None
            mutations.append(Mutation(key, b"%d" % (int(cell.value) + by)))
            versions.append(Version(key, cell.timestamp))
        requests.append((mutations, versions))
    results = engine.commit_many(requests)
    failures = [each for each in results if isinstance(each, Exception)]
    assert all(isinstance(each, AbortedError) for each in failures), failures
    return len(results) - len(failures)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_regions_split_and_merge_while_batches_are_under_way(
    hbase: HBase, protocol: ProtocolName
) -> None:
    """Of the data and of the transactions. Whoever meets a region that is gone looks it up again,
    asks for what was not done, and for nothing that was."""
    name = f"shuffled-{uuid.uuid4().hex[:8]}"
    store = open_store(hbase.native)
    assert isinstance(store, NativeStore)
    stop, committed, failures = threading.Event(), [], []
    with connect(
        hbase.native, table=name, transactions=f"{name}-txn", protocol=protocol, buckets=4
    ) as engine:
        splits = [b"account050", b"account100", b"account150"]
        store.ensure_table(name.encode(), {b"d": Family()}, splits)
        engine.commit([Mutation(account(number), b"%d" % BALANCE) for number in range(ACCOUNTS)])

        def work(seed: int) -> None:
            chance, count = Random(seed), 0
            try:
                while not stop.is_set():
                    count += transfer_many(engine, chance)
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
            committed.append(count)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            data = Shuffler(store, name.encode(), Random(1))
            transactions = Shuffler(store, f"{name}-txn".encode(), Random(1))
            for change in (
                lambda: data.split(b"account025"),
                lambda: transactions.split(b"00.transaction.5"),
                lambda: data.merge(b"account150"),
                lambda: transactions.merge(b"03."),
            ):
                time.sleep(0.5)
                assert change()
            time.sleep(0.5)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert all(count > 0 for count in committed)
        cells = engine.read([account(number) for number in range(ACCOUNTS)])
        assert sum(int(cell.value) for cell in cells.values() if cell) == ACCOUNTS * BALANCE
    store.close()


def test_a_scan_of_a_rare_column_goes_on_when_a_server_takes_long(hbase: HBase) -> None:
    """It has half of the time of the call; then it says how far it has come."""
    table = f"rare-{uuid.uuid4().hex[:8]}".encode()
    patient = open_store(hbase.native)
    patient.ensure_table(table, {b"d": Family()})
    for start in range(0, ROWS, 10_000):
        rows = [b"%06d" % number for number in range(start, start + 10_000)]
        edits = [Edit(Key(row, "d", "usual", table), b"x" * 100, 1) for row in rows]
        edits += [Edit(Key(row, "d", f"rare{n}", table), b"1", 1) for row in rows[:1] for n in "ab"]
        patient.write(edits)
    patient.close()
    hurried = open_store(f"{hbase.native}?timeout_ms={HURRY_MS}")
    columns = [(b"d", b"rarea"), (b"d", b"rareb")]
    found = [(row.row, len(row.cells)) for row in hurried.scan(table, columns=columns)]
    assert found == [(b"%06d" % number, 2) for number in range(0, ROWS, 10_000)]
    assert sum(1 for _ in hurried.scan(table)) == ROWS
    hurried.close()
