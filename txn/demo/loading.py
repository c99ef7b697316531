"""The ways of the flights into the tables: a function each, which may be killed anywhere and then
run again.

By `commit_partition` and by `commit_frame` a flight with its entries in the indexes is one
transaction. A data frame is written into one table; so by `format("txn")` the row of a flight is
one transaction and its entries are another, in a second write. Written atomically, all flights are
one transaction, which appears at once, and all entries are another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from txn.client.engine import Engine
from txn.client.parts import PartsClient
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
from txn.protocol.phases import Status
from txn.protocol.row import FAMILY as OWN_FAMILY
from txn.protocol.row import decode_row, whole_of
from txn.spark.partitions import (
    CommitOptions,
    Counts,
    Summary,
    commit_frame,
    commit_partition,
)
from txn.spark.requests import make_token, name_job
from txn.spark.source import register
from txn.spark.workers import Access

# Tasks tell of their flights when they end: there are enough of them for a job to be seen at work,
# and killed part way, and each is large enough that its start does not count.
TASKS = 24
TASKS_OF_A_DAY = 4
LEAST_OF_A_TASK = 50
MOST_OF_A_TASK = 500
# What a killed worker leaves undecided is waited for so long: the default suits clusters better.
LEASE_MS = 2_000
# What a task writes of a transaction in parts is one part, so that parts tell how far a job is.
PART_KEYS = MOST_OF_A_TASK * len(COLUMNS)


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
        return self.flights.repartition(count_tasks(total))


def count_tasks(total: int) -> int:
    """Return how many tasks share so many flights."""
    return -(-total // min(max(total // TASKS, LEAST_OF_A_TASK), MOST_OF_A_TASK))


@dataclass(frozen=True, slots=True)
class Way:
    """A way of loading. run: does it, for so many flights. transactions: that each of them is; or
    all of them, if the way is atomic: then each task writes a part of it."""

    run: Callable[[Load, int], None]
    transactions: int
    is_atomic: bool = False

    def count_wholes(self, total: int) -> dict[str, int]:
        """Return how many transactions so many flights are, and how many parts those have."""
        if self.is_atomic:
            parts = self.transactions * count_tasks(total)
            return {"transactions": self.transactions, "parts": parts}
        return {"transactions": self.transactions * total}

    @contextmanager
    def open_meter(self, load: Load) -> Iterator[Callable[[], dict[str, int]]]:
        """Yield what tells how far the job is: what became of transactions, and its parts."""
        if not self.is_atomic:
            yield lambda: asdict(load.counts.summary())
            return
        with open_engine(load) as engine:
            yield lambda: {**asdict(load.counts.summary()), "parts": count_parts(engine)}


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


def how_to_commit(tables: DemoTables, counts: Counts) -> CommitOptions[Flight]:
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


def load_atomically(load: Load, total: int) -> None:
    """Write all flights as one transaction, and then all entries as another. Their names make a job
    that runs again find what it has committed."""
    register(load.flights.sparkSession)
    flights = load.divide(total)
    write_atomically(load, "flights", flight_rows(flights), flight_place(load))
    write_atomically(load, "entries", entry_rows(flights), entry_place(load))


def write_atomically(load: Load, job: str, rows: DataFrame, options: Mapping[str, str]) -> None:
    """Write a data frame as one transaction, and count it."""
    token = make_token(name_job(job.encode(), options["table"].encode()))
    with open_engine(load) as engine:
        repeated = PartsClient(engine).find_committed(token) is not None
    write = rows.write.format("txn").options(**options, job_id=job, part_keys=str(PART_KEYS))
    write.option("atomic", "true").mode("append").save()
    load.counts.add(Summary(repeated=1) if repeated else Summary(committed=1))


def open_engine(load: Load) -> Engine:
    """Open an engine of the driver's."""
    return Access(load.uri, transactions=load.tables.transactions).open_engine()


def count_parts(engine: Engine) -> int:
    """Return how many parts tasks have begun, of transactions that were not aborted."""
    context = engine.context
    rows = context.store.scan(context.table, columns=[(OWN_FAMILY, b"status")])
    statuses = (decode_row(row).status for row in rows if whole_of(row.row) is not None)
    return sum(status not in (Status.ABORTING, Status.ABORTED) for status in statuses)


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
    return common_options(load) | flight_place(load)


def entry_options(load: Load) -> Mapping[str, str]:
    """Return the options of a write of entries: those of a flight are one transaction."""
    return common_options(load) | entry_place(load) | {"group_by": ENTRY}


def common_options(load: Load) -> dict[str, str]:
    """Return the options of both writes: how, and what counts them."""
    return {"lease_ms": str(LEASE_MS), "counts": load.counts.name_accumulators()}


def flight_place(load: Load) -> dict[str, str]:
    """Return the options that say where flights are written."""
    return store_options(load) | {"table": load.tables.flights, "row": "row", "family": FAMILY}


def entry_place(load: Load) -> dict[str, str]:
    """Return the options that say where entries are written."""
    return store_options(load) | {"table": load.tables.indexes, "row": "entry", "family": FAMILY}


def store_options(load: Load) -> dict[str, str]:
    """Return the options that name the store."""
    return {"uri": load.uri, "transactions": load.tables.transactions}


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
    "atomic": Way(load_atomically, 2, is_atomic=True),
}
