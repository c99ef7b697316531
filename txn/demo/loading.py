"""The ways of the flights into the tables: a function each, which may be killed anywhere and then
run again.

By `commit_partition` and by `commit_frame` a flight with its entries in the indexes is one
transaction. A data frame is written into one table; so by `format("txn")` the row of a flight is
one transaction and its entries are another, in a second write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from txn.demo.data import (
    COLUMNS,
    ENTRY,
    FAMILY,
    DemoTables,
    Flight,
    WayName,
    flight_request,
    flight_row,
)
from txn.policy import Policy
from txn.spark.committing import Counts
from txn.spark.partitions import FrameRow, HowToCommit, commit_frame, commit_partition
from txn.spark.source import register

# Tasks tell of their flights when they end: there are enough of them for a job to be seen at work,
# and killed part way, and each is large enough that its start does not count.
TASKS = 24
TASKS_OF_A_DAY = 4
LEAST_OF_A_TASK = 50
MOST_OF_A_TASK = 500
# What a killed worker leaves undecided is waited for so long: the default suits clusters better.
LEASE_MS = 2_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be loaded. counts: of transactions. folder: for what outlives a job's death."""

    uri: str
    tables: DemoTables
    flights: DataFrame
    counts: Counts
    folder: Path

    def divide(self, total: int) -> DataFrame:
        """Return the flights, so many, in parts: one for each task."""
        of_a_task = min(max(total // TASKS, LEAST_OF_A_TASK), MOST_OF_A_TASK)
        return self.flights.repartition(-(-total // of_a_task))


@dataclass(frozen=True, slots=True)
class Way:
    """A way of loading. run: does it, for so many flights. transactions: that each of them is."""

    run: Callable[[Load, int], None]
    transactions: int


# ------------------------------------------------------------- a transaction for each flight


def load_by_partition(load: Load, total: int) -> None:
    """Hand the rows of each task to `commit_partition`."""
    load.divide(total).foreachPartition(partition_loader(load.uri, load.tables, load.counts))


def partition_loader(
    uri: str, tables: DemoTables, counts: Counts
) -> Callable[[Iterable[Row]], None]:
    """Return what a task does. It refers to modules and plain data only, so that it travels."""

    def load_partition(rows: Iterable[Row]) -> None:
        dictionaries = (row.asDict() for row in rows)
        request = partial(flight_request, tables)
        commit_partition(uri, dictionaries, request, **how_to_commit(tables, counts))

    return load_partition


def load_by_arrow(load: Load, total: int) -> None:
    """Hand the whole data frame to `commit_frame`."""
    request = partial(flight_request, load.tables)
    commit_frame(load.divide(total), load.uri, request, **how_to_commit(load.tables, load.counts))


def how_to_commit(tables: DemoTables, counts: Counts) -> HowToCommit[FrameRow]:
    """Return what each task is told besides the store and the rows."""
    return {
        "once": token,
        "counts": counts,
        "transactions": tables.transactions,
        "policy": Policy(lease_ms=LEASE_MS),
    }


def token(flight: Flight) -> str:
    """Return what makes a flight's transaction happen once."""
    return f"flights/{flight_row(flight)}"


# ------------------------------------------------------------ by the format of the data source


def load_by_writer(load: Load, total: int) -> None:
    """Write the flights, and then their entries. The names of flights are tokens, so that a job
    that runs again finds what it has committed."""
    register(load.flights.sparkSession)
    flights = load.divide(total)
    rows = flight_rows(flights).write.format("txn").options(**flight_options(load))
    rows.option("once_by", "row").mode("append").save()
    entries = entry_rows(flights).write.format("txn").options(**entry_options(load))
    entries.option("once_by", ENTRY).mode("append").save()


def load_by_stream(load: Load, total: int) -> None:
    """Write the same as streams, a day a batch. What is committed already a stream that starts
    again knows by its checkpoint, and by tokens with the numbers of its batches."""
    spark = load.flights.sparkSession
    register(spark)
    days = write_days(load.flights, load.folder / "days")
    source = spark.readStream.schema(load.flights.schema).option("maxFilesPerTrigger", 1)
    flights = source.json(str(days)).repartition(TASKS_OF_A_DAY, "origin", "carrier", "flight")
    for rows, options in (
        (flight_rows(flights), flight_options(load)),
        (entry_rows(flights), entry_options(load)),
    ):
        place = load.folder / f"checkpoint-{options['table']}"
        query = rows.writeStream.format("txn").options(**options)
        query.option("checkpointLocation", str(place)).trigger(
            availableNow=True
        ).start().awaitTermination()


def flight_rows(flights: DataFrame) -> DataFrame:
    """Return the rows of the table of flights: the row key, and what is stored there."""
    return flights.select(row_column(), *COLUMNS)


def entry_rows(flights: DataFrame) -> DataFrame:
    """Return the rows of the indexes, those of a flight together: the row key, and the flight's."""
    row = f.col("row")
    route = f.concat(f.lit("route/"), "origin", f.lit("-"), f.coalesce("dest", f.lit("")))
    aircraft = f.concat(f.lit("aircraft/"), "tailnum")
    entries = f.array(*(f.concat(index, f.lit("/"), row) for index in (route, aircraft)))
    named = flights.withColumn("row", row_column())
    rows = named.select(f.explode(entries).alias("entry"), row.alias(ENTRY))
    return rows.where("entry is not null")  # of a flight whose aircraft is not known


def row_column() -> Column:
    """Return the row key of a flight as a column, as `txn.demo.data` makes it."""
    numbers = (
        f.coalesce(f.col(name).cast("int"), f.lit(0))
        for name in ("year", "month", "day", "sched_dep_time")
    )
    text = f.format_string("%s/%04d-%02d-%02d/%04d/%s%s", "origin", *numbers, "carrier", "flight")
    return text.alias("row")


def flight_options(load: Load) -> Mapping[str, str]:
    """Return the options of a write of flights."""
    return common_options(load) | {"table": load.tables.flights, "row": "row", "family": FAMILY}


def entry_options(load: Load) -> Mapping[str, str]:
    """Return the options of a write of entries: those of a flight are one transaction."""
    own = {"table": load.tables.indexes, "row": "entry", "family": FAMILY, "group_by": ENTRY}
    return common_options(load) | own


def common_options(load: Load) -> dict[str, str]:
    """Return the options of both writes: where, how, and what counts them."""
    return {
        "uri": load.uri,
        "transactions": load.tables.transactions,
        "lease_ms": str(LEASE_MS),
        "counts": load.counts.name_accumulators(),
    }


def write_days(flights: DataFrame, folder: Path) -> Path:
    """Write a file for each day, if an earlier run has not, and return their folder."""
    if not (folder / "_SUCCESS").exists():
        days = flights.withColumn("date", f.concat_ws("-", "year", "month", "day"))
        days.repartition("date").write.mode("overwrite").partitionBy("date").json(str(folder))
    return folder


WAYS: Mapping[WayName, Way] = {
    "partition": Way(load_by_partition, 1),
    "arrow": Way(load_by_arrow, 1),
    "writer": Way(load_by_writer, 2),
    "stream": Way(load_by_stream, 2),
}
