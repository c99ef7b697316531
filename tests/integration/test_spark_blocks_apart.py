"""`run_partition` and `commit_partition` on executors of their own, killed; `make long` has HBase.

The bank is the program of docs/howto/spark.md.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from recovery import check, repair_all
from tests.integration.hbase import HBase
from tests.integration.spark_cluster import (
    Application,
    JobFailedError,
    run_application,
    wait_until,
)
from tests.integration.spark_jobs import run_bank
from txn import Engine, connect
from txn.protocol.statuses import ProtocolName

BANK = "tests.integration.spark_jobs:run_bank"
ACCOUNTS = [f"account-{number}".encode() for number in range(20)]


def make_database(uri: str, protocol: ProtocolName) -> dict[str, str]:
    """Make a transaction table with a name of its own; return the place."""
    place = {"uri": uri, "transactions": f"t{uuid.uuid4().hex[:8]}"}
    with connect(**place, protocol=protocol):  # type: ignore[arg-type]
        return place


def open_engine(place: dict[str, str]) -> Engine:
    return connect(**place, create=False)  # type: ignore[arg-type]


def count_transfers(place: dict[str, str]) -> int:
    """Return how many are decided; it takes a moment, as a poll should."""
    time.sleep(0.2)
    table = f"{place['transactions']}-transfers"
    with open_engine(place) as engine:
        if engine.context.store.describe(table.encode()) is None:
            return 0
        return sum(1 for _ in engine.scan(table))


def mend(place: dict[str, str], *tables: str) -> None:
    """Repair what is there as if everybody had long been silent; then nothing is left."""
    scan = [f"{place['transactions']}-{table}".encode() for table in tables]
    with open_engine(place) as engine:
        for _ in range(2):
            list(repair_all(engine.context, check(engine.context, grace_ms=0, scan=scan)))
        assert not list(check(engine.context, grace_ms=0, scan=scan))


def assert_books_balance(place: dict[str, str], transfers: int) -> None:
    """Each transfer was decided once, and the balances are what the paid ones make of them."""
    with open_engine(place) as engine:
        found = [
            {row.row: cell.value for row in engine.scan(table) for cell in row.cells.values()}
            for table in (f"{place['transactions']}-{name}" for name in ("accounts", "transfers"))
        ]
    balances = {account: int(value) for account, value in found[0].items()}
    states = {int(number): value for number, value in found[1].items()}
    assert sorted(states) == list(range(transfers))
    assert set(states.values()) == {b"paid", b"refused"}
    expected = dict.fromkeys(ACCOUNTS, 100)
    for number, state in states.items():
        if state == b"paid":
            expected[ACCOUNTS[number % 20]] -= number % 50
            expected[ACCOUNTS[number * 7 % 19]] += number % 50
    assert balances == expected
    assert min(balances.values()) >= 0 and sum(balances.values()) == 2000


def kill_bank(
    application: Application, place: dict[str, str], transfers: int, kills: list[str]
) -> None:
    """Start the bank, and kill parts of it or all while it is under way."""
    application.start(BANK, place=place, transfers=transfers)
    for number, part in enumerate(kills):
        done = count_transfers(place)
        more = max(1, (transfers - done) // (2 * (len(kills) - number)))
        wait_until(lambda: count_transfers(place) >= done + more)  # noqa: B023
        {
            "task": application.kill_worker,
            "executor": application.kill_executor,
            "driver": application.kill,
        }[part]()


def assert_it_goes_on(place: dict[str, str], transfers: int, counted: dict[str, int]) -> None:
    """The last run found what was there before, and the rest was not there."""
    assert counted["committed"] + counted["repeated"] == transfers
    assert counted["repeated"] > 0 and counted["committed"] > 0
    mend(place, "accounts", "transfers")
    assert_books_balance(place, transfers)


@pytest.mark.slow
def test_the_bank_of_the_page_is_killed_and_has_the_right_sum(
    spark: SparkSession, tmp_path: Path
) -> None:
    """This is what the library is for: transfers from Spark, each once, whoever dies."""
    place = make_database(f"embedded://{tmp_path}/bank?sync=off", "six-phase")
    with run_application(tmp_path / "spark", "local[2, 4]") as application:  # 4 failures of a task
        kill_bank(application, place, 4_000, ["task", "driver"])
        with pytest.raises(JobFailedError):
            application.wait()
    mend(place, "accounts", "transfers")
    assert_it_goes_on(place, 4_000, run_bank(spark, place=place, transfers=4_000))


@pytest.mark.long
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_the_bank_is_killed_three_times_on_hbase(
    hbase: HBase, tmp_path: Path, protocol: ProtocolName
) -> None:
    """The same on the store that it is for: an executor, the driver, and an executor again."""
    place, transfers = make_database(hbase.native, protocol), 1_000
    with run_application(tmp_path / "first") as application:
        kill_bank(application, place, transfers, ["executor", "driver"])
    mend(place, "accounts", "transfers")
    with run_application(tmp_path / "second") as application:
        kill_bank(application, place, transfers, ["executor"])
        assert_it_goes_on(place, transfers, application.wait())
