"""What `format("txn")` makes of its options, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import NullType, StringType, StructField, StructType

from recovery.spark import OPTIONS as FINDINGS
from txn import AbortedError, Engine, InvalidRequestError, Key, Mutation, Outcome, connect
from txn.reading import columns
from txn.spark import changes, make_batch_writer, reader, views
from txn.spark.atomic import ATOMIC, AtomicWriter, PartsReport
from txn.spark.changes import CHANGES
from txn.spark.options import COMMON
from txn.spark.session import choose_sockets
from txn.spark.source import TxnDataSource
from txn.spark.views import LOCKS_SCHEMA, LocksReader, TransactionsReader
from txn.spark.writer import STREAMING, WRITING

MAPPED = {"table": "rows", "row": "id string", "columns": "v string=f:v"}
SCHEMA = StructType([StructField("id", StringType()), StructField("v", StringType())])


def make_source(**options: Any) -> TxnDataSource:
    return TxnDataSource({"uri": f"memory://{uuid.uuid4().hex}", **options})


def test_large_rows_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "PAGE_BYTES", 1_000)
    source = make_source(**MAPPED)
    with connect(source.options["uri"], table="rows") as engine:
        engine.ensure_table("rows", ["f"])
        for row in range(6):
            engine.commit([Mutation(Key(str(row), "f", "v"), "x" * 400)])
        rows = source.reader(SCHEMA)
        (part,) = rows.partitions()
        batches = [batch for batch in rows.read(part) if isinstance(batch, pa.RecordBatch)]
    assert [batch.num_rows for batch in batches] == [3, 3]


MODES: dict[str, tuple[dict[str, str], Callable[[TxnDataSource], object], Collection[str]]] = {
    "write": ({}, lambda source: source.writer(SCHEMA, False), WRITING),
    "atomic": ({"atomic": "true"}, lambda source: source.writer(SCHEMA, False), ATOMIC),
    "sink": ({}, lambda source: source.streamWriter(SCHEMA, False), [*WRITING, *STREAMING]),
    "read": ({}, lambda source: source.reader(SCHEMA), reader.OPTIONS),
    "snapshot": (
        {"snapshot": "true"},
        lambda source: source.reader(SCHEMA),
        [*reader.OPTIONS, *reader.KEPT],
    ),
    "schema": ({}, lambda source: source.schema(), reader.OPTIONS),
    "changes": (
        {"view": "changes"},
        lambda source: source.streamReader(CHANGES).initialOffset(),
        changes.OPTIONS,
    ),
    **{
        name: ({"view": name}, lambda source: source.reader(source.schema()), own)
        for name, own in (
            ("transactions", TransactionsReader.options),
            ("locks", LocksReader.options),
            ("findings", FINDINGS),
        )
    },
}
"""What a query may be: the options that make it one, how Spark asks for it, and what it may have.
"""
MISSPELT = [(mode, name) for mode, (*_, own) in MODES.items() for name in (*COMMON, *own)]


@pytest.mark.parametrize(("mode", "name"), MISSPELT)
def test_a_misspelt_option_is_told_the_one_that_is_meant(mode: str, name: str) -> None:
    """Here a letter is left out; an underscore may be, as case does not matter either."""
    options, plan, _ = MODES[mode]
    folded = name.replace("_", "").lower()
    half = len(folded) // 2
    wrong = folded[:half] + folded[half + 1 :]
    with pytest.raises(InvalidRequestError) as caught:
        plan(make_source(**options, **{wrong: "1"}))
    assert str(caught.value) == f"unknown option option={wrong!r} nearest={name!r}"


@pytest.fixture
def empty_store() -> Iterator[tuple[str, Engine]]:
    """A store without tables, which lives as long as its engine."""
    uri = f"memory://{uuid.uuid4().hex}"
    with connect(uri) as engine:
        yield uri, engine


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("transactions", {"table": "rows"}, "option='table'"),
    ("locks", {}, "option='table'"),
    ("changes", {"table": "rows"}, r"option='table'.*'tables'"),
    ("changes", {"startingOffsets": "yesterday"}, "unknown value.*earliest"),
    ("changes", {"rowless": "maybe"}, "unknown value"),
    ("schema", {"columns": MAPPED["columns"], "row": "id", "hbase.table": "x"}, r"hbase\.table"),
    ("read", {**MAPPED, "numPartitions": "0"}, "whole number option='numPartitions'"),
    ("read", {**MAPPED, "view": "changes"}, "readStream"),
    *(
        ("schema", {**MAPPED, option: "1"}, "unknown option")
        for option in ("latenessMs", "retentionMs", "rowless")
    ),
    ("snapshot", {**MAPPED, "rowless": "ignore"}, r"choices=.*refuse"),
    ("write", {"zzzzzz": "1"}, r"option='zzzzzz' known=\['ack', .*'versions'"),
    *(
        (mode, {name: "/some"}, r"options uri and table path='/some'")
        for name in ("path", "paths")
        for mode in ("write", "atomic", "sink", "read", "schema")
    ),
    *(
        ("atomic", {**MAPPED, name: "id"}, rf"one transaction.*options=\['{name}'\]")
        for name in ("onceBy", "groupBy", "rejects", "batchSize")
    ),
    ("atomic", {**MAPPED, "uri": "txn://127.0.0.1:1"}, "a server commits no parts"),
    ("sink", {**MAPPED, "atomic": "true"}, "make_batch_writer"),
    ("sink", {**MAPPED, "jobId": "x"}, "jobId goes with onceBy"),
    ("write", {**MAPPED, "ifAbsent": "w"}, "no column of the mapping"),
    ("write", {**MAPPED, "ifVersion": "v"}, "type that does not fit"),
    ("write", {**MAPPED, "assertions": "v"}, "cannot be a cell as well"),
    ("write", {**MAPPED, "once": "false", "jobId": "x"}, "exclude each other"),
    ("write", {**MAPPED, "onReject": "fail", "rejects": "table:rejects"}, "exclude each other"),
    ("write", {**MAPPED, "groupBy": "id", "onceBy": "v"}, "a group has one token"),
    ("write", {**MAPPED, "counts": "x"}, "counts are what"),
]


@pytest.mark.parametrize(("mode", "given", "words"), WRONG)
def test_what_means_nothing_is_refused(mode: str, given: dict[str, str], words: str) -> None:
    """`table` for `tables` would tell of all tables, without a word."""
    options, plan, _ = MODES[mode]
    with pytest.raises(InvalidRequestError, match=words):
        plan(make_source(**options, **given))


@pytest.mark.parametrize(
    ("mode", "given", "words"),
    [
        ("write", {}, r"no such table.*table=b'rows'"),
        ("sink", {}, r"no such table.*table=b'rows'"),
        ("rows", {}, r"no such table table=b'rows'"),
        ("locks", {"view": "locks", "table": "absent,"}, r"no such table table=b'absent'"),
        ("write", {"transactions": "mistyped"}, "no such transaction table.*mistyped"),
        ("write", {"newTable": "1", "rejects": "table:no"}, r"no such table.*table=b'no'"),
    ],
)
def test_what_is_absent_is_named_while_a_job_is_planned(
    empty_store: tuple[str, Engine], mode: str, given: dict[str, str], words: str
) -> None:
    """A task would fail four times before it is told. Nothing is left behind."""
    uri, engine = empty_store
    source = TxnDataSource({"uri": uri, **({} if mode == "locks" else MAPPED), **given})
    with pytest.raises(InvalidRequestError, match=words):
        if mode in ("rows", "locks"):
            source.reader(SCHEMA if mode == "rows" else LOCKS_SCHEMA).partitions()
        else:
            MODES[mode][1](source)
    assert engine.context.store.describe(b"rows") is None


WRITTEN = {"table": "rows", "row": "id", "columns": "v=f:v, id=by_v(v, id)/i:id"}


@pytest.mark.parametrize("mode", ["write", "atomic", "sink"])
def test_missing_tables_are_created_at_planning(empty_store: tuple[str, Engine], mode: str) -> None:
    uri, engine = empty_store
    options, plan, _ = MODES[mode]
    given = {**WRITTEN, **options, "uri": uri, "newTable": "3", "splitKeys": r"g\xff,p"}
    plan(TxnDataSource({**given, "versions": "7"}))
    plan(TxnDataSource({**given, "newTable": "1", "splitKeys": ""}))
    store = engine.context.store
    for table, family in ((b"rows", b"f"), (b"by_v", b"i")):
        families = store.describe(table)
        assert families is not None
        assert {name: each.versions for name, each in families.items()} == {family: 7}
        assert families[family].database == b"txn"
    with pytest.raises(InvalidRequestError, match="no such family"):
        MODES["write"][1](TxnDataSource({**given, "columns": "v=g:v"}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"newTable": "0"}, "whole number option='newTable' value='0'"),
        ({"newTable": "2"}, r"newTable=2 splitKeys=\[\]"),
        ({"newTable": "3", "splitKeys": "p,g"}, r"in order.*splitKeys=\[b'p', b'g'\]"),
        ({"newTable": "1", "versions": "0"}, "option='versions'"),
        ({"versions": "3"}, r"with newTable only options=\['versions'\]"),
    ],
)
def test_a_new_table_that_makes_no_sense_is_refused(given: dict[str, str], words: str) -> None:
    for mode in ("write", "atomic"):
        options, plan, _ = MODES[mode]
        with pytest.raises(InvalidRequestError, match=words):
            plan(make_source(**WRITTEN, **options, **given))


def test_a_condition_selects_rows_of_the_reader() -> None:
    source = make_source(**MAPPED, where="id >= 'c'", stop="e")
    assert source.reader(SCHEMA).ranges == ((b"c", b"e"),)  # type: ignore[attr-defined]


def test_an_atomic_frame_without_a_report_is_aborted(empty_store: tuple[str, Engine]) -> None:
    """The parts of that task would not be counted, so half of the frame would commit."""
    uri, engine = empty_store
    writer = TxnDataSource({**MAPPED, "uri": uri, "newTable": "1", "atomic": "true"}).writer(
        SCHEMA, False
    )
    assert isinstance(writer, AtomicWriter)
    with pytest.raises(AbortedError, match="a task has no report"):
        writer.commit([PartsReport(0, 0, 0), None])
    assert writer.transaction is not None
    assert engine.outcome(writer.transaction) is Outcome.ABORTED


def test_a_complete_stream_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="use the output mode append"):
        make_source(**MAPPED).streamWriter(SCHEMA, True)


def test_a_column_without_a_type_is_named() -> None:
    """`select null as v` has a type that nothing can be read as; there may be many columns."""
    schema = StructType([StructField("id", StringType()), StructField("v", NullType())])
    with pytest.raises(InvalidRequestError, match="column='v'"):
        make_source(table="rows", row="id", family="f").reader(schema)
    with pytest.raises(InvalidRequestError, match="option='jobId'"):
        make_batch_writer({"job_id": "x"})


@pytest.mark.parametrize(
    ("folder", "master", "is_set"),
    [
        ("folder", None, True),
        ("folder", "local-cluster[1,1,1024]", True),
        ("folder", "spark://host:7077", False),
        ("x" * 60, None, False),
        ("ü" * 30, None, False),
    ],
)
def test_workers_on_this_machine_are_reached_by_unix_sockets(
    folder: str, master: str | None, is_set: bool
) -> None:
    """Through TCP each task of a worker in use waits 40 ms. The kernel refuses long paths."""
    found = choose_sockets(Path("/tmp", folder), master)
    prefix = "spark.python.unix.domain.socket"
    assert found == (
        {f"{prefix}.enabled": "true", f"{prefix}.dir": "/tmp/folder"} if is_set else {}
    )


def test_large_transactions_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of one data frame have a megabyte each, and a worker should not need them all."""
    monkeypatch.setattr(views, "BATCH_BYTES", 1_500)
    source = make_source(view="transactions")
    with connect(source.options["uri"], table="rows") as engine:
        engine.ensure_table("rows", ["f"])
        for row in range(4):
            engine.commit([Mutation(Key(str(row), "f", "v"), "x" * 1_000)], once=f"t-{row}")
        view = source.reader(source.schema())
        found = [batch for part in view.partitions() for batch in view.read(part)]
    assert len(found) > 1
    assert sum(batch.num_rows for batch in found if isinstance(batch, pa.RecordBatch)) == 4
