"""The ways of the flights into the tables: a function each, which may be killed anywhere and then
run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame, Row

from txn.demo.data import DemoTables, Flight, flight_request, flight_row
from txn.policy import Policy
from txn.spark.committing import Counts
from txn.spark.partitions import FrameRow, HowToCommit, commit_frame, commit_partition

WayName = Literal["partition", "arrow"]
Way = Callable[[str, DemoTables, DataFrame, Counts], object]
"""Takes the store, its tables, the flights in parts of a task's size, and what counts them."""

# Tasks tell of their flights when they end: there are enough of them for a job to be seen at work,
# and killed part way, and each is large enough that its start does not count.
TASKS = 24
LEAST_OF_A_TASK = 50
MOST_OF_A_TASK = 500
# What a killed worker leaves undecided is waited for so long: the default suits clusters better.
POLICY = Policy(lease_ms=2_000)


def divide(flights: DataFrame, total: int) -> DataFrame:
    """Return so many flights in parts, one for each task."""
    of_a_task = min(max(total // TASKS, LEAST_OF_A_TASK), MOST_OF_A_TASK)
    return flights.repartition(-(-total // of_a_task))


def load_by_partition(uri: str, tables: DemoTables, flights: DataFrame, counts: Counts) -> None:
    """Hand the rows of each task to `commit_partition`."""
    flights.foreachPartition(partition_loader(uri, tables, counts))


def partition_loader(
    uri: str, tables: DemoTables, counts: Counts
) -> Callable[[Iterable[Row]], None]:
    """Return what a task does. It refers to modules and plain data only, so that it travels."""

    def load_partition(rows: Iterable[Row]) -> None:
        dictionaries = (row.asDict() for row in rows)
        request = partial(flight_request, tables)
        commit_partition(uri, dictionaries, request, **how_to_commit(tables, counts))

    return load_partition


def load_by_arrow(uri: str, tables: DemoTables, flights: DataFrame, counts: Counts) -> None:
    """Hand the whole data frame to `commit_frame`."""
    commit_frame(flights, uri, partial(flight_request, tables), **how_to_commit(tables, counts))


def how_to_commit(tables: DemoTables, counts: Counts) -> HowToCommit[FrameRow]:
    """Return what each task is told besides the store and the rows."""
    return {
        "once": token,
        "counts": counts,
        "transactions": tables.transactions,
        "policy": POLICY,
    }


def token(flight: Flight) -> str:
    """Return what makes a flight's transaction happen once."""
    return f"flights/{flight_row(flight)}"


WAYS: dict[WayName, Way] = {"partition": load_by_partition, "arrow": load_by_arrow}
