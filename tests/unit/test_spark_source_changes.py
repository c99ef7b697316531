"""What `format("txn")` makes of the options of a change feed, without Spark.

Apart from the other options, since these tests alone want PySpark 4.2 or later.
"""

from __future__ import annotations

import pytest

from tests.unit.test_spark_source import MAPPED, SCHEMA, make_source
from txn import InvalidRequestError
from txn.spark.changes import CHANGES


def test_an_option_of_another_view_is_refused() -> None:
    """`table` for `tables` would else tell of the changes of all tables, without a word."""
    with pytest.raises(InvalidRequestError, match=r"option='table'.*'tables'"):
        make_source(view="changes", table="rows").streamReader(CHANGES).initialOffset()


def test_changes_are_no_batch_and_rows_no_stream() -> None:
    """Who writes `read` for `readStream` is told so."""
    with pytest.raises(InvalidRequestError, match="readStream"):
        make_source(view="changes").reader(CHANGES)
    with pytest.raises(InvalidRequestError, match=r"say view=changes"):
        make_source(view="rows", **MAPPED).streamReader(SCHEMA).initialOffset()


def test_a_list_of_tables_names_one() -> None:
    """An empty list would else be the changes of all tables."""
    with pytest.raises(InvalidRequestError, match="option='tables'"):
        make_source(view="changes", tables="").streamReader(CHANGES).initialOffset()
