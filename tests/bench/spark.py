"""`python -m tests.bench spark`: what Spark pays for transactions when it writes and reads rows.

    write, plain       foreachPartition with a put for each row: on HBase by happybase, through its
                       Thrift 1 gateway; else through the store itself
    write, batched     the same with puts in batches, as large as the writer's own
    write, six-phase   df.write.format("txn"), each row a transaction
    write, fenced      the same
    read, plain        mapPartitions with the store's own scan, where rows are only counted
    read, six-phase    spark.read.format("txn") into the sink noop
    read, fenced       the same

On an HBase, natively but for happybase, and on an embedded store. All is measured in one session of
`local[2]`, warm, in rounds, in turns: each write puts new rows, each read has all rows of a table
that was filled before, by plain puts where it is scanned plainly, and all tables are divided alike.
Ratios are to the plain case of the same round, and to the batched one. Processor time is that of
Java with all its Python workers, and of the servers, where they are our own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import happybase
import psutil
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.servers import measured_hbase
from txn import Key, connect
from txn.clock import SystemClock
from txn.model import Edit, Family
from txn.spark.session import local_session
from txn.spark.source import register
from txn.spark.writer import BATCH
from txn.stores import open_store
from txn.stores.base import Store

Work = Literal["write", "read"]
Subject = Literal["plain", "batched", "six-phase", "fenced"]

WORKS: tuple[Work, ...] = get_args(Work)
SUBJECTS: dict[Work, tuple[Subject, ...]] = {
    "write": get_args(Subject),
    "read": ("plain", "six-phase", "fenced"),
}
PROTOCOLS = ("six-phase", "fenced")
STORES = ("hbase", "embedded")
FAMILY = "d"
NAMES = ("a", "b", "c", "d")
"""The columns of a row, each with some twenty bytes."""
CORES = 2
TASKS = 4
AIMS: dict[tuple[Work, Subject], float] = {
    ("write", "six-phase"): 0.4,
    ("write", "fenced"): 0.8,
    ("read", "six-phase"): 0.7,
    ("read", "fenced"): 0.7,
}
"""The least ratio to the plain case, on HBase."""


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """A store that is measured. gateway: of Thrift 1, for happybase; None: there is none."""

    name: str
    uri: str
    gateway: str | None = None
    servers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SparkCase:
    """What is measured in each round."""

    place: SparkPlace
    work: Work
    subject: Subject

    @property
    def table(self) -> str:
        return f"spark-{self.work}-{self.subject}"

    @property
    def transactions(self) -> str:
        return f"{self.table}-transactions"

    @property
    def options(self) -> dict[str, str]:
        """Those of the data source."""
        columns = ", ".join(f"{name} string={FAMILY}:{name}" for name in NAMES)
        place = {"uri": self.place.uri, "table": self.table, "transactions": self.transactions}
        return {**place, "row": "id string", "columns": columns}


@dataclass(frozen=True, slots=True)
class SparkWindow:
    """What one case took in one round."""

    seconds: float
    client_s: float
    server_s: float


# ------------------------------------------------------------------------------ what is measured


def make_rows(spark: SparkSession, start: int, count: int) -> DataFrame:
    """Return so many new rows. A bucket goes before the number, as it is usual, so that each task
    writes to all regions."""
    numbers = spark.range(start, start + count, 1, TASKS)
    row = f.format_string("%d-%010d", f.col("id") % TASKS, "id").alias("id")
    cells = (f.format_string(f"{name}-value-%012d", "id").alias(name) for name in NAMES)
    return numbers.select(row, *cells)


def make_table(case: SparkCase) -> None:
    """Make a table in as many regions as there are tasks, and that of its transactions."""
    splits = [b"%d" % bucket for bucket in range(1, TASKS)]
    with closing(open_store(case.place.uri)) as store:
        store.ensure_table(case.table.encode(), {FAMILY.encode(): Family()}, splits)
    if case.subject in PROTOCOLS:
        found = partial(connect, case.place.uri, transactions=case.transactions)
        found(protocol=case.subject).close()  # type: ignore[arg-type]


def write(spark: SparkSession, case: SparkCase, start: int, count: int) -> None:
    """Write so many rows in the way of the case."""
    rows = make_rows(spark, start, count)
    if case.subject in PROTOCOLS:
        rows.write.format("txn").options(**case.options).mode("append").save()
        return
    size = BATCH if case.subject == "batched" else 1
    if case.place.gateway is not None:
        rows.foreachPartition(partial(put_by_happybase, case.place.gateway, case.table, size))
    else:
        rows.foreachPartition(partial(put_by_store, case.place.uri, case.table, size))


def read(spark: SparkSession, case: SparkCase, count: int) -> None:
    """Read all rows in the way of the case, so many."""
    if case.subject in PROTOCOLS:
        rows = spark.read.format("txn").options(**case.options).load()
        rows.write.format("noop").mode("overwrite").save()
        return
    with closing(open_store(case.place.uri)) as store:
        splits = store.find_splits(case.table.encode(), TASKS - 1)
    parts = list(pairwise((b"", *splits, None)))
    counted = spark.sparkContext.parallelize(parts, len(parts)).mapPartitions(
        partial(count_rows, case.place.uri, case.table)
    )
    if (found := counted.sum()) != count:
        raise RuntimeError(f"{case.table} has {found} rows, not {count}")


def take_batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yield rows, so many at a time."""
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch


def put_by_happybase(gateway: str, table: str, size: int, rows: Iterable[Row]) -> None:
    """Put rows, so many at a time, in a task."""
    address = urlsplit(gateway)
    with closing(happybase.Connection(address.hostname, address.port)) as connection:
        target = connection.table(table)
        for batch in take_batches(rows, size):
            puts = target if size == 1 else target.batch()
            for row in batch:
                puts.put(row.id, {f"{FAMILY}:{name}": row[name] for name in NAMES})
            if size > 1:
                puts.send()


def put_by_store(uri: str, table: str, size: int, rows: Iterable[Row]) -> None:
    """Put rows, so many at a time, through the store, in a task."""
    store, clock = open_warm(uri), SystemClock()
    for batch in take_batches(rows, size):
        now_ms = clock.wall_ms()
        store.write(
            [
                Edit(Key(row.id, FAMILY, name, table), row[name].encode(), now_ms)
                for row in batch
                for name in NAMES
            ]
        )


def count_rows(uri: str, table: str, parts: Iterable[tuple[bytes, bytes | None]]) -> Iterator[int]:
    """Yield how many rows parts of a table have, in a task."""
    store = open_warm(uri)
    for start, stop in parts:
        yield sum(1 for _ in store.scan(table.encode(), start, stop))


@cache
def open_warm(uri: str) -> Store:
    """Return the store of this Python worker, which all its tasks share, as those of the data
    source share theirs."""
    return open_store(uri)


# ---------------------------------------------------------------------------------------- rounds


def measure(case: SparkCase, run: Callable[[], None]) -> SparkWindow:
    """Run it, and tell what it took."""
    client_s, server_s, began_s = sum_client_s(), sum_own_s(case.place.servers), time.monotonic()
    run()
    return SparkWindow(
        time.monotonic() - began_s,
        sum_client_s() - client_s,
        sum_own_s(case.place.servers) - server_s,
    )


def sum_client_s() -> float:
    """Return the processor time of Java and all that it has started, dead or alive, so far."""
    spent_s = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times, words = process.cpu_times(), process.cmdline()
        except psutil.Error:
            continue
        if is_of_spark(words):
            spent_s += times.user + times.system + times.children_user + times.children_system
    return spent_s


def is_of_spark(words: Sequence[str]) -> bool:
    """Whether a command is that of Spark's Java or of one of its Python processes, and not that of
    a server that was started beside it."""
    return any("pyspark" in word for word in words)


def sum_own_s(processes: Sequence[int]) -> float:
    """Return the processor time of some processes so far."""
    times = [psutil.Process(process).cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def run_rounds(
    spark: SparkSession, cases: Sequence[SparkCase], rows: int, rounds: int, warm: int
) -> dict[SparkCase, list[SparkWindow]]:
    """Fill the tables that are read, and measure every case in each round, after so many that do
    not count."""
    for case in cases:
        make_table(case)
        if case.work == "read":
            write(spark, case, 0, rows)
    kept: dict[SparkCase, list[SparkWindow]] = {case: [] for case in cases}
    plan = [(number, case) for number in range(-warm, rounds) for case in cases]
    for number, case in track(plan, "spark", console=Console(stderr=True)):
        start = (number + warm) * rows
        if case.work == "write":
            measured = measure(case, partial(write, spark, case, start, rows))
        else:
            measured = measure(case, partial(read, spark, case, rows))
        if number >= 0:
            kept[case].append(measured)
    return kept


def list_rows(kept: dict[SparkCase, list[SparkWindow]], rows: int) -> list[dict[str, Any]]:
    """Return the figures of each case: medians over the rounds, ratios within them."""
    found = []
    for case, windows in kept.items():
        found.append(
            {
                "store": case.place.name,
                "work": case.work,
                "subject": case.subject,
                "rows": rows,
                "per_second": rows / median(window.seconds for window in windows),
                "ratios": list_ratios(kept, case, "plain"),
                "to_batched": list_ratios(kept, case, "batched"),
                "client_s": median(window.client_s for window in windows),
                "server_s": median(window.server_s for window in windows),
                "aim": AIMS.get((case.work, case.subject)) if case.place.gateway else None,
                "windows": [asdict(window) for window in windows],
            }
        )
    return found


def list_ratios(
    kept: dict[SparkCase, list[SparkWindow]], case: SparkCase, to: Subject
) -> list[float]:
    """Return how fast a case was, as shares of another one, round by round; of what nobody does in
    batches, none."""
    floor = kept.get(SparkCase(case.place, case.work, to), [])
    return [other.seconds / mine.seconds for mine, other in zip(kept[case], floor, strict=False)]


def show(found: Sequence[dict[str, Any]]) -> None:
    """Print the figures as a table."""
    head = ("store", "work", "way", "rows a second", "to plain", "range", "aim", "to batched")
    table = Table(*head, "client, CPU s", "servers, CPU s", title="spark, warm, in one run")
    for row in found:
        ratio, aim = median(row["ratios"]), row["aim"]
        verdict = "" if aim is None else f"{aim} {'reached' if ratio >= aim else 'missed'}"
        table.add_row(
            *(row["store"], row["work"], row["subject"]),
            f"{row['per_second']:,.0f}",
            f"{ratio:.2f}",
            f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}",
            verdict,
            f"{median(row['to_batched']):.2f}" if row["to_batched"] else "",
            f"{row['client_s']:.2f}",
            f"{row['server_s']:.2f}",
        )
    Console(width=140).print(table)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", choices=STORES, action="append", help="one of them, or both")
    parser.add_argument("--work", choices=WORKS, action="append", help="one of them, or both")
    parser.add_argument("--rows", type=int, default=10_000, help="for each case in each round")
    parser.add_argument("--rounds", type=int, default=5, help="how many count")
    parser.add_argument("--warm", type=int, default=2, help="rounds before them that do not")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(given)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txn-bench-")))
        places = []
        if "hbase" in (options.store or STORES):
            hbase = stack.enter_context(measured_hbase())
            places.append(SparkPlace("hbase", hbase.native, hbase.thrift1, hbase.processes))
        if "embedded" in (options.store or STORES):
            places.append(SparkPlace("embedded", f"embedded://{folder / 'store'}"))
        cases = [
            SparkCase(place, work, subject)
            for place in places
            for work in options.work or WORKS
            for subject in SUBJECTS[work]
        ]
        spark = stack.enter_context(local_session("bench", folder / "spark", cores=CORES))
        register(spark)
        kept = run_rounds(spark, cases, options.rows, options.rounds, options.warm)
        found = list_rows(kept, options.rows)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
