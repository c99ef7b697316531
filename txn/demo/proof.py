"""Prove with Spark that the tables hold every flight of the CSV exactly once, and nothing else.

The tables are read through the store and not the engine, so that locks and tags are visible. Each
check has the counted number and the expected one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from txn.clock import SystemClock
from txn.demo.data import ANCHOR, COLUMNS, ENTRY, DemoTables, flight_row, index_rows
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Row
from txn.protocol.codec import decode_marker
from txn.protocol.locks import holder_of
from txn.protocol.row import decode_row, is_row_key, parent_of
from txn.protocol.statuses import Status
from txn.stores import open_store

# Where scans of a table are divided between tasks; the first and the last range are open.
FLIGHT_SPLITS = (b"JFK/", b"LGA/")
INDEX_SPLITS = (b"route/", b"route/JFK", b"route/LGA")
TRANSACTION_SPLITS = (b"transaction.",)
ENTRIES = "entry string, row string"
COMPLETE = str(Status.COMPLETE)
STORED = ", ".join(f"{name} string" for name in ("row", *COLUMNS))


@dataclass(frozen=True, slots=True)
class ProofCheck:
    name: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def reconcile(
    spark: SparkSession, uri: str, tables: DemoTables, csv: DataFrame, transactions: int
) -> list[ProofCheck]:
    """Compare flights and tables in both directions, and count transactions."""
    scan_flights = partial(scan_in_tasks, spark, uri, tables.flights, FLIGHT_SPLITS)
    scan_indexes = partial(scan_in_tasks, spark, uri, tables.indexes, INDEX_SPLITS)
    scan_transactions = partial(scan_in_tasks, spark, uri, tables.transactions, TRANSACTION_SPLITS)
    rows = csv.rdd.map(lambda row: (flight_row(row.asDict()), *(row[name] for name in COLUMNS)))
    stored = spark.createDataFrame(scan_flights(flight_cells), STORED).cache()
    entries = spark.createDataFrame(scan_indexes(index_cells), ENTRIES).cache()
    columns = "row string, part string, status string"
    all_rows = spark.createDataFrame(scan_transactions(transaction_cells), columns)
    markers = spark.createDataFrame(scan_transactions(marker_cells), "row string")
    names = ("flights", "flights: missing or different", "flights: not in the source")
    scans = (scan_flights, scan_indexes, scan_transactions)
    left = spark.sparkContext.union([scan(list_leftovers) for scan in scans]).countByValue()
    return [
        *compare_rows(names, spark.createDataFrame(rows, STORED), stored),
        *prove_index(spark, "route", stored, entries),
        *prove_index(spark, "aircraft", stored, entries),
        ProofCheck("cells locked", 0, left.get("lock", 0)),
        ProofCheck("cells tagged", 0, left.get("tag", 0)),
        *prove_transactions(all_rows, markers, transactions),
    ]


def compare_rows(
    names: Sequence[str], expected: DataFrame, found: DataFrame
) -> Iterator[ProofCheck]:
    """Count the rows of two frames, which may repeat, and those that only one of them has."""
    yield ProofCheck(names[0], expected.count(), found.count())
    yield ProofCheck(names[1], 0, expected.exceptAll(found).count())
    yield ProofCheck(names[2], 0, found.exceptAll(expected).count())


def prove_index(
    spark: SparkSession, index: str, stored: DataFrame, entries: DataFrame
) -> Iterator[ProofCheck]:
    """Check that each flight has its index entry, and each entry its flight."""
    known = stored.where(f.col(ANCHOR).isNotNull()).rdd  # the rest is reported already
    pairs = known.flatMap(
        lambda row: [
            (entry, row.row)
            for entry in index_rows(row.row.split("/")[0], row.row, row.dest, row.tailnum)
            if entry.startswith(f"{index}/")
        ]
    )
    found = entries.where(f.col("entry").startswith(f"{index}/"))
    counted = ("entries", "flights without entry", "entries without flight")
    names = [f"index by {index}: {each}" for each in counted]
    return compare_rows(names, spark.createDataFrame(pairs, ENTRIES), found)


def prove_transactions(
    all_rows: DataFrame, markers: DataFrame, expected: int
) -> Iterator[ProofCheck]:
    """Check that every transaction row is finished, each part has its transaction, and exactly one
    transaction committed each token."""
    is_parent = f.col("part").isNull()
    is_open = ~f.col("status").isin(COMPLETE, str(Status.ABORTED))
    rows = all_rows.groupBy("row").agg(
        f.max(f.when(is_parent, f.col("status"))).alias("status"),
        f.count(f.when(is_open, 1)).alias("unfinished"),
        f.count(f.when(~is_parent & (f.col("status") == COMPLETE), 1)).alias("complete_parts"),
    )
    marked = markers.groupBy("row").agg(f.count("*").alias("markers"))
    has_marker = f.col("markers").isNotNull()
    complete = f.coalesce(f.col("status") == COMPLETE, f.lit(False))
    aborted = f.coalesce(f.col("status") == str(Status.ABORTED), f.lit(False))
    checks = [
        ("transaction rows unfinished", 0, f.coalesce("unfinished", f.lit(0))),
        ("parts of what was not committed", 0, f.when(~complete, f.col("complete_parts"))),
        ("transactions with a marker", expected, f.coalesce("markers", f.lit(0))),
        ("markers of one transaction", expected, has_marker),
        ("markers of an aborted one", 0, has_marker & aborted),
        ("transactions committed twice", 0, ~has_marker & complete),
    ]
    joined = rows.join(marked, "row", "full_outer")
    sums = joined.agg(*(f.sum(column.cast("long")) for _, _, column in checks)).collect()[0]
    for (name, wanted, _), found in zip(checks, sums, strict=True):
        yield ProofCheck(name, wanted, found or 0)


def scan_in_tasks(
    spark: SparkSession,
    uri: str,
    table: str,
    splits: Sequence[bytes],
    take: Callable[[Row], Iterable[Any]],
) -> RDD[Any]:
    """Return the results of `take` for each row of a table; each task scans a part of it."""
    bounds = list(pairwise((None, *splits, None)))

    def scan(bound: tuple[bytes | None, bytes | None]) -> Iterator[Any]:
        with closing(open_store(uri, SystemClock())) as store:
            for row in store.scan(table.encode(), bound[0] or b"", bound[1]):
                yield from take(row)

    return spark.sparkContext.parallelize(bounds, len(bounds)).flatMap(scan)


def flight_cells(row: Row) -> Iterator[tuple[str | None, ...]]:
    cells = read_texts(row)
    if cells:
        yield (row.row.decode(), *(cells.pop(name, None) for name in COLUMNS))
    for name in cells:  # an unknown column becomes a row of its own, which a check reports
        yield (f"{row.row.decode()}:{name}", *(None for _ in COLUMNS))


def index_cells(row: Row) -> list[tuple[str, str | None]]:
    cells = read_texts(row)
    return [(row.row.decode(), cells.get(ENTRY))] if cells else []


def list_leftovers(row: Row) -> Iterator[str]:
    """Yield a word for each cell of the row that is locked or tagged."""
    for key, cell in row.cells.items():
        if key.column.endswith(LOCK_SUFFIX) and holder_of(key, cell):
            yield "lock"
        if cell.value and key.column.endswith(TAG_SUFFIX):
            yield "tag"


def transaction_cells(row: Row) -> Iterator[tuple[str, str | None, str]]:
    """Yield a transaction row: its key, the key of its part (if any), and its status or None."""
    if is_row_key(row.row):
        name, status = row.row.decode(), str(decode_row(row).status)
        whole = parent_of(row.row)
        yield (name, None, status) if whole is None else (whole.decode(), name, status)


def marker_cells(row: Row) -> Iterator[tuple[str]]:
    """Yield the transaction that committed the marker's token."""
    if row.row.startswith(b"once."):
        for key, cell in row.cells.items():
            if not key.column.endswith((LOCK_SUFFIX, TAG_SUFFIX)):
                yield (decode_marker(cell.value).transaction.decode(),)


def read_texts(row: Row) -> dict[str, str]:
    return {
        key.column.decode(): cell.value.decode()
        for key, cell in row.cells.items()
        if not key.column.endswith((LOCK_SUFFIX, TAG_SUFFIX))
    }
