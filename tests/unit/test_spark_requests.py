"""Rows of a data frame become requests: their tokens and conditions, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as t

from txn import Delete, Exact, Key, Mutation, Not, Request, Some, Version
from txn.errors import InvalidRequestError
from txn.model import MAX_TABLE
from txn.request import MAX_TOKEN
from txn.spark import PartitionError
from txn.spark.atomic import split_parts, split_rows
from txn.spark.codecs import arrow_schema
from txn.spark.options import SourceOptions
from txn.spark.requests import SourceRows, parse_requests
from txn.spark.tokens import digest_rows, find_token
from txn.spark.writer import Rejects

SCHEMA = t.StructType([t.StructField("id", t.LongType()), t.StructField("v", t.StringType())])
WITH_EXTRA = t.StructType([*SCHEMA.fields, t.StructField("extra", t.StringType())])
Rows = list[dict[str, Any]]
V = Key("1", "f", "v", "rows")
OTHER = Key("7", "f", "n", "other")


def draft(rows: Rows, schema: t.StructType = SCHEMA, **options: str) -> list[Request]:
    """Return the requests of rows that came as one record batch."""
    given = {"uri": "memory://x", "table": "rows", "row": "id as text", "columns": "v=f:v"}
    builder = parse_requests(SourceOptions({**given, **options}), schema)
    batch = pa.record_batch(
        [[row.get(name) for row in rows] for name in schema.names], schema.names
    )
    return [request for _, request in builder.build_requests([batch], b"job/0")]


def tokens(rows: Rows, schema: t.StructType = SCHEMA, **options: str) -> list[bytes | None]:
    return [request.once for request in draft(rows, schema, **options)]


def test_tokens_do_not_depend_on_the_order_of_rows() -> None:
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "a"}]
    found = tokens(rows)
    assert len(set(found)) == 3
    assert set(tokens(rows[::-1])) == set(found)


SPACED = t.StructType([*WITH_EXTRA.fields, t.StructField("a b", t.StringType())])


@pytest.mark.parametrize(
    ("options", "token"),
    [
        ({"once_by": "v"}, rb"rows/a\/b"),
        ({"once_by": "v, extra", "job_id": "pay"}, rb"/pay/rows/a\/b/c"),
        ({"once_by": "extra, v", "job_id": "pay"}, rb"/pay/rows/c/a\/b"),
        ({"once_by": "extra", "table": "others", "job_id": "pay"}, b"/pay/others/c"),
        ({"once_by": "a b"}, b"rows/x"),
    ],
)
def test_a_token_names_job_table_and_values(options: dict[str, str], token: bytes) -> None:
    rows = [{"id": 1, "v": "a/b", "extra": "c", "a b": "x"}]
    assert tokens(rows, SPACED, columns="v=f:v, extra=f:e, `a b`=f:x", **options) == [token]


@pytest.mark.parametrize("size", [1, 2_000])
def test_every_job_and_table_leave_room_for_a_token(size: int) -> None:
    tables = ["/" * MAX_TABLE, "/" * (MAX_TABLE - 1) + "a"]
    rows = [{"id": 1, "v": "a" * 600}, {"id": 2, "v": "a" * 599 + "b"}]
    found = [
        token
        for table in tables
        for token in tokens(rows, table=table, once_by="v", job_id="/" * size)
    ]
    assert len(set(found)) == 4
    assert all(token is not None and len(token) <= MAX_TOKEN for token in found)
    assert found[:2] == tokens(rows, table=tables[0], once_by="v", job_id="/" * size)


WITH_ENTRY = "v=f:v, id=by_v(v, id)/i:id as text"


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"v": None}, {"once_by": "v"}, "names a transaction is null"),
        ({"v": None}, {}, "only nulls"),
        ({"v": None}, {"group_by": "id"}, "only nulls"),
        ({"v": None}, {"columns": WITH_ENTRY}, "must not be null or empty column='v'"),
        ({"v": "x", "extra": "{"}, {"assertions": "extra"}, "not JSON column='extra'"),
        ({"v": "x" * 100_000, "extra": ""}, {"columns": "v=f:v, extra=f:e"}, "is empty"),
    ],
)
def test_a_bad_row_is_named(row: dict[str, Any], options: dict[str, str], message: str) -> None:
    """One of a million may be broken; and the error of a large one is read by people."""
    schema = WITH_EXTRA if "extra" in row else SCHEMA
    with pytest.raises(PartitionError, match=message) as told:
        draft([{"id": 1, **row}], schema, **options)
    assert '"id": 1' in str(told.value)
    assert len(str(told.value)) < 3_000


def test_options_of_requests_are_those_of_commit() -> None:
    given = {"once_by": "v", "once_retention_ms": "5", "validate": "true"}
    ways: list[dict[str, str]] = [given, {"once_by": "v"}]
    found = [draft([{"id": 1, "v": "a"}], SCHEMA, **way)[0] for way in ways]
    assert [(one.once_retention_ms, one.validate) for one in found] == [(5, True), (None, None)]


def test_nulls_are_left_alone_or_deleted() -> None:
    rows: Rows = [{"id": 1, "v": None}]
    kept = draft([{**rows[0], "extra": "x"}], WITH_EXTRA, columns="v=f:v, extra=f:extra")[0]
    assert [mutation.key.column for mutation in kept.mutations] == [b"extra"]
    assert draft(rows, nulls="delete")[0].mutations == (Delete(V),)


@pytest.mark.parametrize(
    "given, assertion",
    [
        ('{"some": "v"}', Some(V)),
        ('[{"not": {"exact": "v", "value": "x"}}]', Not(Exact(V, "x"))),
        ('{"version": "v", "timestamp": null}', Version(V, None)),
        ('{"exact": "other/7/f:n", "value": {"base64": "AQ=="}}', Exact(OTHER, b"\x01")),
    ],
)
def test_assertions_are_documents_about_columns_and_keys(given: str, assertion: object) -> None:
    (request,) = draft([{"id": 1, "v": "a", "extra": given}], WITH_EXTRA, assertions="extra")
    assert request.assertions == (assertion,)
    assert request.mutations == (Mutation(V, "a"),)
    (alone,) = draft([{"id": 1, "v": None, "extra": given}], WITH_EXTRA, assertions="extra")
    assert (alone.mutations, alone.assertions) == ((), (assertion,))


def test_only_the_files_of_attempts_that_count_get_names(tmp_path: Any) -> None:
    """A lost attempt has rejects too, perhaps of rows that the next one has written."""
    for name in (".job-0-a.rejects", ".job-0-b.rejects", ".other-0-c.rejects", "job-7.jsonl"):
        (tmp_path / name).write_text(name)
    rejects = Rejects(folder=tmp_path)
    rejects.name_files("job", [".job-0-b.rejects", None])
    found = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert found == {"job-0.jsonl": ".job-0-b.rejects", ".other-0-c.rejects": ".other-0-c.rejects"}
    rejects.drop_files("other")
    assert [file.name for file in tmp_path.iterdir()] == ["job-0.jsonl"]


def test_tokens_depend_on_what_is_written_where() -> None:
    """One job writes a frame to two tables, or two columns: the second must not count as done."""
    rows = [{"id": 1, "v": "a", "extra": "a"}]
    entries = ("by_v(v, id)/i:id", "by_v(id, v)/i:id", "by_v(v, id)/i:other", "by_v(v, id)/j:id")
    ways: list[dict[str, str]] = [
        {},
        {"table": "others"},
        {"columns": "v=f:w"},
        {"columns": "v=f:v", "nulls": "delete"},
        {"columns": "v=f:v", "if_absent": "v"},
        *({"columns": f"v=f:v, id={entry} as text"} for entry in entries),
    ]
    found = [tokens(rows, SCHEMA, **way)[0] for way in ways]
    assert len(set(found)) == len(ways)
    assert found[0] == tokens(rows)[0]


def test_a_token_stands_for_its_rows_and_where_they_go() -> None:
    """The second row of a name, or the second part of its group, was lost without an error."""
    rows = [{"id": n, "v": v, "extra": "g"} for n, v in enumerate("aab")]
    named = {"once_by": "extra", "group_by": "extra"}
    ways = [rows, rows[:2], rows[:1], rows[2:], [{**rows[0], "v": "z"}]]
    found = [draft(way, WITH_EXTRA, **named)[0] for way in ways]
    found.append(draft(rows, WITH_EXTRA, nulls="delete", **named)[0])
    assert {request.once for request in found} == {b"rows/g"}
    assert len({request.once_content for request in found}) == len(found)
    (again,) = draft(rows[::-1], WITH_EXTRA, **named)
    assert again.once_content == found[0].once_content


TEXTS = (t.StructField(name, t.StringType()) for name in ("w", "doc", "g"))
EVERYTHING = t.StructType([*SCHEMA.fields, *TEXTS, t.StructField("seen", t.LongType())])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from([1, 2]),
            "v": st.sampled_from([None, "x", "y/"]),
            "w": st.sampled_from([None, "x", "x", ""]),
            "doc": st.sampled_from([None, '{"some": "v"}', '{"some": "v"}', "{"]),
            "g": st.sampled_from("ab"),
            "seen": st.sampled_from([None, 5, 5, 0]),
        }
    ),
    max_size=4,
).map(lambda rows: sorted(rows, key=lambda row: str(row["g"])))
OPTIONS = st.fixed_dictionaries(
    {"nulls": st.sampled_from(["leave", "delete"])},
    optional={
        "assertions": st.just("doc"),
        "if_absent": st.sampled_from(["true", "v"]),
        "if_version": st.sampled_from(["seen", "v=seen"]),
        "group_by": st.just("g"),
        "once_by": st.just("g"),
        "once": st.just("true"),
    },
)


def build_all(batches: list[pa.RecordBatch], options: dict[str, str]) -> list[Any]:
    """Return the requests with their sources, and the error that ends them."""
    given = {"uri": "memory://x", "table": "rows", "row": "id as text", "columns": "v=f:v, w=f:w"}
    used = ["id", "v", "w", *{"g", "doc", "seen"}.intersection(_list_words(options))]
    schema = t.StructType([field for field in EVERYTHING.fields if field.name in used])
    some = [batch.select(schema.names) for batch in batches]
    found: list[Any] = []
    try:
        for rows, request in parse_requests(
            SourceOptions({**given, **options}), schema
        ).build_requests(some, b"job/0"):
            found.append((repr(rows), [row.row for row in rows], request))
    except PartitionError as error:
        found.append(str(error))
    return found


def _list_words(options: dict[str, str]) -> list[str]:
    return [text.rpartition("=")[2] for text in options.values()]


@drawn(ROWS, OPTIONS)
def test_a_batch_is_encoded_as_its_rows_alone(rows: Rows, options: dict[str, str]) -> None:
    """Batches are encoded by columns, and Spark divides rows into batches as it likes."""
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(EVERYTHING))
    alone = [batch.slice(place, 1) for place in range(len(rows))]
    together, found = build_all([batch], options), build_all(alone, options)
    if found and isinstance(found[-1], str) and "group" not in found[-1]:
        assert together[-1] == found[-1]  # a batch with a bad row has no requests before it
    else:
        assert together == found


def test_tokens_stay_as_they_were() -> None:
    """A job that began with an earlier version would write its rows again."""
    row = {"id": 1, "v": "a", "w": None, "doc": '{"some": "v"}', "seen": 5}
    batch = pa.RecordBatch.from_pylist([row, row], arrow_schema(EVERYTHING))
    ways: list[dict[str, str]] = [
        {},
        {"nulls": "delete"},
        {"assertions": "doc", "if_version": "v=seen"},
    ]
    found = [request.once for way in ways for *_, request in build_all([batch], way)]
    assert found == [
        b"job/0/990319bd47904b705bf0aa679bf13c7d",
        b"job/0/990319bd47904b705bf0aa679bf13c7d/1",
        b"job/0/850fc3f0d3f715b0aaff26c5254e025e",
        b"job/0/850fc3f0d3f715b0aaff26c5254e025e/1",
        b"job/0/7e103bf0aaa71a56670b06032359472e",
        b"job/0/7e103bf0aaa71a56670b06032359472e/1",
    ]


class Kept(NamedTuple):
    """Rows that were rejected: their content, the token of the reject, and why."""

    rows: str
    keys: list[bytes]
    token: bytes | None
    why: str


def build_with_rejects(
    rows: Rows, schema: t.StructType = SCHEMA, **options: str
) -> tuple[list[str], list[Kept]]:
    """Return what is written of rows that came as one record batch, and what is rejected."""
    given = {"uri": "memory://x", "table": "rows", "row": "id as text", "columns": "v=f:v"}
    builder = parse_requests(SourceOptions({**given, **options}), schema)
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(schema))
    kept: list[Kept] = []

    def reject(sources: SourceRows, request: Request, why: InvalidRequestError) -> None:
        assert not request.keys
        kept.append(Kept(sources.text(), [row.row for row in sources], request.once, str(why)))

    built = builder.build_requests([batch], b"job/0", reject)
    return [sources.text() for sources, _ in built], kept


def test_rows_that_do_not_encode_are_rejected_one_by_one() -> None:
    rows: Rows = [{"id": n, "v": f"{n}"} for n in range(20)]
    rows[3]["v"] = rows[4]["v"] = ""
    rows[11]["id"] = None
    rows[19]["v"] = None
    written, kept = build_with_rejects(rows)
    assert len(written) == 16
    assert [each.keys for each in kept] == [[b"3"], [b"4"], [b""], [b"19"]]
    assert json.loads(kept[0].rows) == {"id": 3, "v": ""}
    words = [*["is empty.*column='v'"] * 2, "must not be null.*column='id'", "only nulls"]
    assert all(re.search(word, each.why) for word, each in zip(words, kept, strict=True))
    assert len({each.token for each in kept}) == 4


def test_a_group_is_rejected_as_a_whole() -> None:
    rows: Rows = [
        {"id": n, "v": "" if n == 2 else "x", "extra": group}
        for n, group in enumerate(["a", "b", "b", "c", None])
    ]
    rows.append({"id": 3, "v": "y", "extra": None})
    rows[3:4] = [rows[3], rows[3]]
    written, kept = build_with_rejects(rows, WITH_EXTRA, group_by="extra")
    assert [json.loads(each)["id"] for each in written] == [0]
    assert [each.keys for each in kept] == [[b"1", b"2"], [b"3", b"3"], [b"4"], [b"3"]]
    assert "writes a cell twice key=Key(b'3'" in kept[1].why


@pytest.mark.parametrize("once", ["true", "false"])
def test_a_rejected_row_may_come_again_mended(once: str) -> None:
    """Its reject must not take the token that names the payment."""
    named = {"once_by": "id", "job_id": "pay"}
    options: dict[str, Any] = {"once": once} if once == "false" else named
    _, (kept,) = build_with_rejects([{"id": 1, "v": ""}], **options)
    _, (again,) = build_with_rejects([{"id": 1, "v": ""}], **options)
    assert kept.token == again.token
    assert (kept.token is None) == (once == "false")
    assert kept.token not in tokens([{"id": 1, "v": "good"}], **{**options, "once": "true"})


ENTRY = Mutation(Key("a/1", "i", "id", "by_v"), "1")


def test_parts_have_whole_rows_of_each_table() -> None:
    columns = "v=f:v, extra=rows(extra)/f:extra, id=by_v(v)/i:id as text"
    rows = [{"id": n, "v": f"{n % 2}{n}", "extra": str(5 - n)} for n in range(6)]
    given = {"uri": "memory://x", "table": "rows", "row": "id as text", "columns": columns}
    options = SourceOptions({**given, "if_absent": "true"})
    builder = parse_requests(options, WITH_EXTRA)
    batch = pa.RecordBatch.from_pylist(rows, arrow_schema(WITH_EXTRA))
    pieces = [
        piece
        for sources, request in builder.build_requests([batch], b"")
        for piece in split_rows(sources[0].row, b"rows", request)
    ]
    parts = list(split_parts(pieces, 2))
    found = [{(m.key.table, m.key.row) for m in part.mutations} for part in parts]
    assert len(found) > 3
    assert sum(map(len, found)) == len(set().union(*found)) == 12
    assert sum(len(part.mutations) for part in parts) == 18
    assert all(
        {(k.table, k.row) for k in part.keys} <= rows
        for part, rows in zip(parts, found, strict=True)
    )


def test_an_entry_without_its_row_is_a_part_too() -> None:
    entry = Request((ENTRY,))
    assert list(split_rows(b"1", b"rows", entry)) == [entry]
    both = Request((ENTRY,), (Some(V),))
    assert list(split_rows(b"1", b"rows", both)) == [Request((), (Some(V),)), entry]


def test_no_two_jobs_columns_values_and_tables_share_a_token() -> None:
    """A second job over the same ids found the tokens of the first, and wrote nothing."""
    words = ["".join(some) for size in (1, 2) for some in product("a/\\", repeat=size)]
    triples = list(product(words, repeat=3))
    found = [find_token({column: value}, column, job) for job, column, value in triples]
    assert len(set(found)) == len(found)
    assert find_token({"id": 7}, "id", "bank") == b"/bank//id/7"
    assert find_token({"id": 7}, lambda row: f"pay/{row['id']}", "a/b") == rb"/a\/b//pay/7"
    assert len(find_token({"id": "x" * 2_000}, "id", "bank")) <= MAX_TOKEN


ROW: dict[str, Any] = {
    "n": 7,
    "text": "a\ud800\n",
    "none": None,
    "raw": b"\xff",
    "price": Decimal("1.10"),
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678),
    "time": dt.time(3, 4),
    "took": dt.timedelta(days=-1, microseconds=5),
    "many": [1, [2.5, True]],
    "map": {"a": 1, "b": 2},
}
HALF: list[Any] = [2.5, True]
SAME: list[Any] = [
    dict(reversed(ROW.items())),
    Row(**ROW),
    {**ROW, "n": 7.0, "raw": bytearray(b"\xff"), "many": (1, Row(*HALF))},
    {**ROW, "n": np.float64(7), "many": np.array([1, [2.5, True]], dtype=object)},
    {**ROW, "n": np.int32(7), "at": pd.Timestamp(ROW["at"]), "took": pd.Timedelta(ROW["took"])},
    {**ROW, "text": np.str_(ROW["text"]), "map": {"b": 2, "a": 1}},
]
OTHERS: list[Any] = [
    *({**ROW, "n": other} for other in (8, "7", None, True, 7.5, float("nan"))),
    {**ROW, "price": Decimal("1.11")},
    {**ROW, "at": ROW["at"].replace(tzinfo=dt.UTC)},
    {**ROW, "took": dt.timedelta(days=1)},
    {**ROW, "many": [1, 2.5, True]},
    {**ROW, "map": {"a": 1}},
    {**ROW, "more": 1},
    tuple(ROW.values()),
]


def test_a_row_is_the_same_however_it_comes_and_no_other_is() -> None:
    """A retried task must not fail because pandas or Arrow shows its rows otherwise."""
    (expected,) = {digest_rows([row]) for row in [ROW, *SAME]}
    found = {digest_rows([row]) for row in OTHERS}
    assert len(found) == len(OTHERS)
    assert expected not in found
    assert digest_rows([ROW], ["other job"]) != expected
    rows = [{"id": 1, "t": [1, 2]}, {"id": 2, "t": []}, {"id": 2, "t": []}]
    assert digest_rows(rows) == digest_rows(rows[::-1]) != digest_rows(rows[:2])
    batch = pa.RecordBatch.from_pylist(rows)
    assert digest_rows(batch.to_pylist()) == digest_rows(batch.to_pandas().to_dict("records"))


def test_values_of_another_kind_are_not_compared() -> None:
    """The text of an object has its address, which another attempt does not have."""
    assert digest_rows([object()]) == digest_rows([{"id": object()}]) == digest_rows([{1, 2}])
