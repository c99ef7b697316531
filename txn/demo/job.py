"""The Spark job of the demonstration, in its own process so that it can be killed.

It writes lines of JSON to its standard output: the number of flights, how many are loaded, and at
the end the requested result. Lines come often enough that the starter does not take it for dead.

There is one function for each way to load the flights. Each may be killed anywhere and run again.
With `commit_partition`, from rows or Arrow batches, a flight and its index entries are one
transaction. A data frame is written to one table. So with `format("txn")` the row of a flight is
one transaction and its entries are another, in a second write. Written atomically, all flights are
one transaction, which appears at once, and all entries are another.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from txn.client.engine import Engine
from txn.client.parts import PartsClient
from txn.demo import data
from txn.demo.proof import reconcile
from txn.policy import Policy
from txn.protocol.row import FAMILY as OWN_FAMILY
from txn.protocol.row import decode_row, parent_of
from txn.protocol.statuses import Status
from txn.spark.partitions import Access, Counts, Summary, commit_partition
from txn.spark.session import local_session
from txn.spark.source import register
from txn.spark.tokens import make_token, name_scope

CORES = 2
REPORT_EACH_S = 0.1
# Tasks report their flights when they end. There are enough tasks to watch and kill the job part
# way, and each is large enough to outweigh its start.
TASKS = 24
TASKS_OF_A_DAY = 4
LEAST_OF_A_TASK = 50
MOST_OF_A_TASK = 500
# The lock TTL: how long locks of a killed worker block others. The default suits clusters better.
LOCK_TTL_MS = 2_000
# One part per task of a transaction in parts, so that the number of parts shows the progress.
PART_KEYS = MOST_OF_A_TASK * len(data.COLUMNS)


class Load(NamedTuple):
    """A load and its settings. counts: of transactions. folder: for what outlives a job's death."""

    uri: str
    tables: data.DemoTables
    flights: DataFrame
    counts: Counts
    folder: Path

    def divide(self, total: int) -> DataFrame:
        """Return the flights, `total` of them, with one partition for each task."""
        return self.flights.repartition(count_tasks(total))

    def open_engine(self) -> Engine:
        return Access(self.uri, transactions=self.tables.transactions).open_engine()

    def make_task(self) -> Callable[[Iterable[Any]], Any]:
        """Return the function that commits the rows (mappings), or batches of rows, of a task."""
        return partial(
            commit_partition,
            self.uri,
            to_request=partial(data.flight_request, self.tables),
            once=data.flight_row,
            job="flights",
            counts=self.counts,
            transactions=self.tables.transactions,
            policy=Policy(lock_ttl_ms=LOCK_TTL_MS),
        )

    def count_ended(self) -> int:
        summary = self.counts.summary()
        return summary.committed + summary.repeated


def count_tasks(total: int) -> int:
    return -(-total // min(max(total // TASKS, LEAST_OF_A_TASK), MOST_OF_A_TASK))


class Way(NamedTuple):
    """A way to load. run: the function, given the number of flights. transactions: the number per
    flight; if the way is atomic, the number for all flights, of which each task writes a part."""

    run: Callable[[Load, int], None]
    transactions: int
    is_atomic: bool = False

    @contextmanager
    def open_meter(self, load: Load) -> Iterator[Callable[[], dict[str, int]]]:
        """Yield a function that returns the progress: transactions, steps, and the parts that tasks
        have begun of transactions that were not aborted."""
        if not self.is_atomic:
            yield lambda: {"done": load.count_ended(), "transactions": load.count_ended()}
            return
        with load.open_engine() as engine:
            context = engine.context

            def count() -> dict[str, int]:
                rows = context.store.scan(context.table, columns=[(OWN_FAMILY, b"status")])
                statuses = (decode_row(row).status for row in rows if parent_of(row.row))
                parts = sum(each not in (Status.ABORTING, Status.ABORTED) for each in statuses)
                return {"done": parts, "transactions": load.count_ended(), "parts": parts}

            yield count


def load_by_partition(load: Load, total: int) -> None:
    load.divide(total).foreachPartition(load.make_task())


def load_by_arrow(load: Load, total: int) -> None:
    task = load.make_task()

    def load_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task(batches)
        return iter(())

    load.divide(total).mapInArrow(load_batches, "nothing int").count()


def list_writes(load: Load, flights: DataFrame) -> list[tuple[DataFrame, dict[str, str], str]]:
    """Return the writes of the flights and of their index entries: the rows, the options, and the
    column with the flight's name, one transaction each."""
    register(flights.sparkSession)
    numbers = (
        f.coalesce(f.col(name).cast("int"), f.lit(0))
        for name in ("year", "month", "day", "sched_dep_time")
    )
    shape = "%s/%04d-%02d-%02d/%04d/%s%s"  # of `flight_row`
    names = f.format_string(shape, "origin", *numbers, "carrier", "flight")
    named, row = flights.withColumn("row", names), f.col("row")
    route = f.concat(f.lit("route/"), "origin", f.lit("-"), f.coalesce("dest", f.lit("")))
    aircraft = f.concat(f.lit("aircraft/"), "tailnum")
    entries = f.array(*(f.concat(index, f.lit("/"), row) for index in (route, aircraft)))
    of_flights = named.select("row", *data.COLUMNS)
    of_entries = named.select(f.explode(entries).alias("entry"), row.alias(data.ENTRY))
    of_entries = of_entries.where("entry is not null")  # aircraft not known
    store = {"uri": load.uri, "transactions": load.tables.transactions, "family": data.FAMILY}
    return [
        (of_flights, store | {"table": load.tables.flights, "row": "row"}, "row"),
        (of_entries, store | {"table": load.tables.indexes, "row": "entry"}, data.ENTRY),
    ]


def load_by_writer(load: Load, total: int) -> None:
    """Write the flights, then their entries. The names of flights are tokens."""
    for rows, options, name in list_writes(load, load.divide(total)):
        write = rows.write.format("txn").options(**options, **count_options(load))
        write.options(groupBy=name, onceBy=name).mode("append").save()


def load_by_stream(load: Load, total: int) -> None:
    """Write the same as streams, a day per batch. A restarted stream finds what is committed by its
    checkpoint, and by tokens with the numbers of its batches."""
    days = load.folder / "days"
    if not (days / "_SUCCESS").exists():  # an earlier run may have written them
        dated = load.flights.withColumn("date", f.concat_ws("-", "year", "month", "day"))
        dated.repartition("date").write.mode("overwrite").partitionBy("date").json(str(days))
    source = load.flights.sparkSession.readStream.schema(load.flights.schema)
    flights = source.option("maxFilesPerTrigger", 1).json(str(days))
    flights = flights.repartition(TASKS_OF_A_DAY, "origin", "carrier", "flight")
    for rows, options, name in list_writes(load, flights):
        place = load.folder / f"checkpoint-{options['table']}"
        write = rows.writeStream.format("txn").options(**options, **count_options(load))
        write = write.options(groupBy=name, checkpointLocation=str(place))
        write.trigger(availableNow=True).start().awaitTermination()


def load_atomically(load: Load, total: int) -> None:
    """Write all flights as one transaction, then all entries as another, and count them. Their
    names let a job that runs again find what it has committed."""
    for rows, options, job in list_writes(load, load.divide(total)):
        with load.open_engine() as engine:
            token = make_token(name_scope(job.encode(), options["table"].encode()))
            is_repeated = PartsClient(engine).find_committed(token) is not None
        write = rows.write.format("txn").options(**options, atomic="true", jobId=job)
        write.option("partKeys", str(PART_KEYS)).mode("append").save()
        load.counts.add(Summary(repeated=1) if is_repeated else Summary(committed=1))


def count_options(load: Load) -> dict[str, str]:
    return {"lock_ttl_ms": str(LOCK_TTL_MS), "counts": load.counts.name_accumulator()}


WAYS: Mapping[data.WayName, Way] = {
    "partition": Way(load_by_partition, 1),
    "arrow": Way(load_by_arrow, 1),
    "writer": Way(load_by_writer, 2),
    "stream": Way(load_by_stream, 2),
    "atomic": Way(load_atomically, 2, is_atomic=True),
}


def report(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def load_flights(load: Load, by: data.WayName) -> int:
    """Commit each flight exactly once; return how many transactions that is."""
    total, way = load.flights.count(), WAYS[by]
    steps = way.transactions * (count_tasks(total) if way.is_atomic else total)
    report("total", flights=total, steps=steps)
    began_s = time.monotonic()
    with way.open_meter(load) as meter, reporting("progress", meter):
        way.run(load, total)
    report("loaded", **asdict(load.counts.summary()), seconds=round(time.monotonic() - began_s, 2))
    return way.transactions * (1 if way.is_atomic else total)


@contextmanager
def reporting(event: str, facts: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Send the event again and again, with the present facts, until the block ends."""
    over = Event()

    def repeat() -> None:
        while not over.wait(REPORT_EACH_S):
            report(event, **facts())

    reporter = Thread(target=repeat)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="txn.demo.job")
    parser.add_argument("--store", required=True)
    parser.add_argument("--tables", type=data.tables_named, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--by", choices=list(WAYS), default="partition")
    parser.add_argument("--reconcile", action="store_true")
    options = parser.parse_args(arguments)
    with local_session("flights", options.folder, cores=CORES) as spark:
        read = spark.read.csv(str(options.csv), header=True, nullValue="NA")
        flights = read.cache()  # used three times
        load = Load(options.store, options.tables, flights, Counts.of(spark), options.folder)
        transactions = load_flights(load, options.by)
        if options.reconcile:
            with reporting("proving", dict):  # takes minutes for the whole year
                checks = reconcile(spark, options.store, options.tables, flights, transactions)
            report("reconciled", checks=[asdict(check) for check in checks])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
