"""What is slow to start, once: a Spark session for all tests, worlds on HBase for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from txn.spark.session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two tasks at once, each of which may fail once: each more costs a failing test seconds."""
    with local_session("tests", tmp_path_factory.mktemp("spark"), cores=2, failures=2) as session:
        yield session
