"""Tokens of Spark's transactions, and what they stand for."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from txn.request import MAX_TOKEN
from txn.spark.tokens import digest_rows, find_token

pytestmark = pytest.mark.fast


def test_no_two_jobs_columns_values_and_tables_share_a_token() -> None:
    """A second job over the same ids found the tokens of the first, and wrote nothing."""
    words = ["".join(some) for size in (1, 2) for some in product("a/\\", repeat=size)]
    triples = list(product(words, repeat=3))
    found = [find_token({column: value}, column, job) for job, column, value in triples]
    assert len(set(found)) == len(found)
    assert find_token({"id": 7}, "id", "bank") == b"/bank//id/7"
    assert find_token({"id": 7}, lambda row: f"pay/{row['id']}", "a/b") == rb"/a\/b//pay/7"
    assert len(find_token({"id": "x" * 2_000}, "id", "bank")) <= MAX_TOKEN


ROW = {
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
SAME: list[Any] = [
    dict(reversed(ROW.items())),
    Row(**ROW),
    {**ROW, "n": 7.0, "raw": bytearray(b"\xff"), "many": (1, Row(2.5, True))},
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
