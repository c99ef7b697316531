"""Statements for applications of spark_cluster, run as they are or under locks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.integration.gate import Gate
from txn.locks import LockManager, Waiting, open_manager
from txn.locks.spark import locked_sql, session_requests

LEASE_MS = 60_000
PATIENT = Waiting(retries=10_000, pause_ms=50, deadline_ms=120_000)


def run_statement(
    spark: SparkSession,
    *,
    sql: str,
    name: str,
    locks: str | None = None,
    patient: bool = True,
    gate: str | None = None,
) -> list[Any]:
    """Return the first column of a statement's rows.

    name: of the application. locks: the manager whose locks to take for it. patient: whether to
    wait for them. gate: the folder of the gate that it may call.
    """
    if gate is not None:
        Gate(Path(gate)).register(spark)
    if locks is None:
        rows = spark.sql(sql).collect()
    else:
        waiting = PATIENT if patient else Waiting(retries=0)
        rows = locked_sql(spark, _open_locks(locks, name), sql, waiting=waiting)
    return [row[0] for row in rows]


def explain_locks(spark: SparkSession, *, sql: str) -> list[str]:
    """Return what a statement would lock."""
    return [str(request) for request in session_requests(spark, sql)]


@cache
def _open_locks(uri: str, name: str) -> LockManager:
    """Return the manager of this process, which ends with it."""
    lease = "session_ms" if uri.startswith("zookeeper") else "lease_ms"
    return open_manager(uri, name=name, **{lease: LEASE_MS})
