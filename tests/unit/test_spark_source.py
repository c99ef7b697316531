"""What `format("txn")` makes of its options, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
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

pytestmark = pytest.mark.fast

MAPPED = {"table": "rows", "row": "id string", "columns": "v string=f:v"}
SCHEMA = StructType([StructField("id", StringType()), StructField("v", StringType())])


def make_source(**options: Any) -> TxnDataSource:
    return TxnDataSource({"uri": f"memory://{uuid.uuid4().hex}", **options})


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
    ("findings", {"table": "rows"}, "option='table'"),
    ("locks", {}, "option='table'"),
    ("changes", {"table": "rows"}, r"option='table'.*'tables'"),
    ("changes", {"tables": ""}, "option='tables'"),
    ("changes", {"startingOffsets": "yesterday"}, "unknown value.*earliest"),
    ("changes", {"rowless": "maybe"}, "unknown value"),
    ("changes", {"delay_ms": "-1"}, "whole number"),
    ("schema", {**MAPPED, "hbase.table": "other"}, r"hbase\.table"),
    ("schema", {"columns": MAPPED["columns"], "row": "id", "hbase.table": "x"}, r"hbase\.table"),
    ("read", {**MAPPED, "pushDownPredicate": "true"}, "say where"),
    ("read", {**MAPPED, "view": "row"}, "unknown value"),
    ("read", {**MAPPED, "numPartitions": "0"}, "whole number option='numPartitions'"),
    ("read", {**MAPPED, "view": "changes"}, "readStream"),
    *(
        ("schema", {**MAPPED, option: "1"}, "unknown option")
        for option in ("latenessMs", "retentionMs", "rowless")
    ),
    ("snapshot", {**MAPPED, "latenessMs": "0"}, "least=1"),
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
    ("sink", {**MAPPED, "atomic": "true"}, "make_batch_writer"),
    ("sink", {**MAPPED, "jobId": "x"}, "jobId goes with onceBy"),
    ("write", {**MAPPED, "ifAbsent": "w"}, "no column of the mapping"),
    ("write", {**MAPPED, "ifVersion": "v"}, "type that does not fit"),
    ("write", {**MAPPED, "assertions": "nowhere"}, "names no column"),
    ("write", {**MAPPED, "assertions": "v"}, "cannot be a cell as well"),
    ("write", {**MAPPED, "once": "false", "jobId": "x"}, "exclude each other"),
    ("write", {**MAPPED, "onReject": "fail", "rejects": "table:rejects"}, "exclude each other"),
    ("write", {**MAPPED, "groupBy": "id", "onceBy": "v"}, "a group has one token"),
    ("write", {**MAPPED, "counts": "x"}, "counts are what"),
    ("write", {**MAPPED, "nulls": "zero"}, "unknown value"),
]


@pytest.mark.parametrize(("mode", "given", "words"), WRONG)
def test_what_means_nothing_is_refused(mode: str, given: dict[str, str], words: str) -> None:
    """`table` for `tables` would tell of all tables, and `hbase.table` beside `table` would be the
    table that is not read, without a word."""
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
    """A task would fail four times before it is told; of a mistyped table there would be no rows,
    and no locks. Nothing is left behind."""
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
        ({"newTable": "true"}, "whole number option='newTable' value='true'"),
        ({"newTable": "2"}, r"newTable=2 splitKeys=\[\]"),
        ({"newTable": "3", "splitKeys": "p,g"}, r"in order.*splitKeys=\[b'p', b'g'\]"),
        ({"newTable": "3", "splitKeys": "g,g"}, "in order"),
        ({"newTable": "3", "splitKeys": ",g"}, "in order"),
        ({"newTable": "1", "versions": "0"}, "option='versions'"),
        ({"versions": "3"}, r"with newTable only options=\['versions'\]"),
        ({"splitKeys": "g"}, r"with newTable only options=\['splitKeys'\]"),
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


@pytest.mark.parametrize("options", [{}, {"uri": "memory://x", "provider": "txn"}])
def test_a_table_of_the_catalogue_names_what_works(options: dict[str, str]) -> None:
    """Spark withholds its options, or adds its own when the table is made."""
    for use in (
        TxnDataSource(options).schema,
        lambda: TxnDataSource(options).writer(SCHEMA, False),
    ):
        with pytest.raises(InvalidRequestError, match="CREATE TEMPORARY VIEW"):
            use()


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


def test_an_atomic_frame_that_is_written_again_says_that_it_writes_nothing(
    empty_store: tuple[str, Engine], caplog: pytest.LogCaptureFixture
) -> None:
    given = {**MAPPED, "uri": empty_store[0], "newTable": "1", "atomic": "true", "jobId": "load"}
    for messages in ([], ["nothing is written: a job of this name wrote the table before"]):
        writer = TxnDataSource(given).writer(SCHEMA, False)
        assert isinstance(writer, AtomicWriter)
        writer.commit([PartsReport(0, 0, 0)])
        assert caplog.messages == messages


def test_a_column_without_a_type_is_named() -> None:
    """`select null as v` has a type that nothing can be read as; there may be many columns."""
    schema = StructType([StructField("id", StringType()), StructField("v", NullType())])
    with pytest.raises(InvalidRequestError, match="column='v'"):
        make_source(table="rows", row="id", family="f").reader(schema)
    with pytest.raises(InvalidRequestError, match="option='jobId'"):
        make_batch_writer({"job_id": "x"})


def test_each_use_of_a_stream_that_cannot_be_tells_why() -> None:
    """Spark shows no error of the call that makes it."""
    reader = make_source(view="rows", **MAPPED).streamReader(SCHEMA)
    for use in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, None),  # type: ignore[call-arg]
        lambda: reader.partitions({}, {}),
        lambda: reader.read(InputPartition(None)),
    ):
        with pytest.raises(InvalidRequestError, match="say view=changes"):
            use()


def test_all_tasks_of_a_snapshot_read_as_of_its_planning() -> None:
    source = make_source(**MAPPED, snapshot="true")
    with connect(source.options["uri"], table="rows") as engine:
        engine.ensure_table("rows", ["f"])
        engine.commit([Mutation(Key(row, "f", "v"), "1") for row in "ab"])
        reader = source.reader(SCHEMA)
        parts = reader.partitions()
        engine.commit([Mutation(Key(row, "f", "v"), "2") for row in "abc"])
        found = [batch.to_pylist() for part in parts for batch in reader.read(part)]
        assert [row for rows in found for row in rows] == [
            {"id": "a", "v": "1"},
            {"id": "b", "v": "1"},
        ]
        usual = make_source(**{**MAPPED, "uri": source.options["uri"]}).reader(SCHEMA)
        (batch,) = (batch for part in usual.partitions() for batch in usual.read(part))
        assert batch.num_rows == 3


@pytest.mark.parametrize("master", [None, "local[3]", "local-cluster[1,1,1024]"])
def test_workers_on_this_machine_are_reached_by_unix_sockets(master: str | None) -> None:
    """Through TCP each task of a worker in use waits 40 ms: a week's flights lost seconds."""
    settings = choose_sockets(Path("/tmp/folder"), master)
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.python.unix.domain.socket.dir"] == "/tmp/folder"


@pytest.mark.parametrize(
    ("folder", "master"),
    [("/tmp/" + "x" * 60, None), ("/tmp/" + "ü" * 30, None), ("/tmp/folder", "spark://host:7077")],
)
def test_nothing_is_set_where_sockets_cannot_be_made(folder: str, master: str | None) -> None:
    """The kernel refuses long paths, in which Spark's names are 41 bytes; and the folder is not
    there on other machines."""
    assert choose_sockets(Path(folder), master) == {}
