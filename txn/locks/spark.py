"""Statements of Apache Spark under the locks that they need, and jobs under whatever is held.

What a statement needs is looked up before its locks are held, and again once they are: a table that
changed in between is locked anew. While it runs, a thread watches the locks; if they are lost it
cancels the statement's jobs, and LockLost is raised whatever came of them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

from txn.errors import ConflictError, InvalidRequestError
from txn.host.extras import import_extra
from txn.locks.hive.model import DATABASE_SETTING, Column, Table
from txn.locks.hive.settings import HIVE_SETTINGS, from_hive
from txn.locks.hive.sql import requests
from txn.locks.manager import Held, LockLost, LockManager, Waiting
from txn.locks.requests import LockRequest, Mode, Path
from txn.repeating import repeat

with import_extra("spark"):
    from pyspark.sql import Row, SparkSession

LOOKS = 5
WATCH_S = 0.2
INTERRUPT = "spark.job.interruptOnCancel"
GLOBAL_VIEWS = "global_temp"


class SessionCatalog:
    """What a Spark session knows of its tables and views, asked anew each time."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def table(self, name: Path) -> Table | None:
        self._refuse_temporary(name)
        sql_name = quoted(name)
        if not self._spark.catalog.tableExists(sql_name):
            return None
        if self._spark.catalog.getTable(sql_name).tableType == "VIEW":
            return self._view(name)
        columns = self._spark.catalog.listColumns(sql_name)
        return Table(
            tuple(
                Column(column.name.lower(), column.dataType)
                for column in columns
                if column.isPartition
            )
        )

    def partitions(self, name: Path) -> Iterable[Sequence[str]]:
        for row in self._spark.sql(f"SHOW PARTITIONS {quoted(name)}").collect():
            parts = str(row[0]).split("/")
            yield tuple(unquote(part.partition("=")[2]) for part in parts)

    def _view(self, name: Path) -> Table:
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {quoted(name)}").collect()
        facts = {row[0]: row[1] for row in rows}
        # Where Hive made the view, the names in it are whole and its database is not told.
        namespace = facts.get("View Catalog and Namespace", name.parts[0]).rpartition(".")[2]
        return Table(query=facts["View Text"], database=namespace.strip("`").lower())

    def _refuse_temporary(self, name: Path) -> None:
        """A temporary view may be of anything: its name says nothing about what it reads."""
        database, view = name.parts
        is_temporary = database == GLOBAL_VIEWS
        if database == self._spark.catalog.currentDatabase().lower():
            alone = f"`{view.replace('`', '``')}`"
            if self._spark.catalog.tableExists(alone):
                is_temporary = self._spark.catalog.getTable(alone).isTemporary
        if is_temporary:
            raise InvalidRequestError("a temporary view: name the tables that it reads", view=view)


def quoted(name: Path) -> str:
    """Return the name of a table as Spark takes it."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.parts)


def session_requests(spark: SparkSession, sql: str) -> list[LockRequest]:
    """Return what to lock while a statement runs in this session."""
    settings = {DATABASE_SETTING: spark.catalog.currentDatabase()}
    return requests(sql, settings, SessionCatalog(spark))


def locked_sql(
    spark: SparkSession, manager: LockManager, sql: str, *, waiting: Waiting | None = None
) -> list[Row]:
    """Run a statement under its locks and return its rows; a query is run, not only planned.

    waiting: how to wait for them; else as the session's Hive settings say (`hive.lock.numretries`
    and so on). Raises LockDenied with nothing done, and LockLost if the locks were lost before the
    end: then the statement's jobs were cancelled, and what it wrote is to be looked at.
    """
    with locked(spark, manager, sql, waiting=waiting):
        return spark.sql(sql).collect()


@contextmanager
def locked(
    spark: SparkSession, manager: LockManager, sql: str, *, waiting: Waiting | None = None
) -> Iterator[Held]:
    """Hold, within the block, the locks that one or more statements need; jobs that the block's
    thread starts are cancelled if the locks are lost."""
    with _hold(spark, manager, sql, waiting or _waiting(spark)) as held, watched(spark, held):
        yield held


@contextmanager
def watched(spark: SparkSession, held: Held) -> Iterator[None]:
    """Run a block's jobs under what is held, locks or a lease: if it is lost, the jobs that the
    block's thread starts are cancelled, and LockLost is raised whatever came of them."""
    _refresh(spark, held)
    context = spark.sparkContext
    tag = f"txn-locks-{uuid.uuid4().hex}"
    done = threading.Event()

    def look() -> None:
        if held.lost:  # again and again: a statement may start one job after another
            context.cancelJobsWithTag(tag)

    work = ("watch locks", look, done, WATCH_S)
    watcher = threading.Thread(target=repeat, args=work, name="txn-locks-watch", daemon=True)
    interrupts = context.getLocalProperty(INTERRUPT)
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if held.lost:
            raise _make_lost(held) from error
        raise
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty(INTERRUPT, interrupts or "false")
        context.removeJobTag(tag)
    if held.requests:
        held.check()


@contextmanager
def _hold(spark: SparkSession, manager: LockManager, sql: str, waiting: Waiting) -> Iterator[Held]:
    for _ in range(LOOKS):
        wanted = session_requests(spark, sql)
        with manager.hold(wanted, query=sql, waiting=waiting) as held:
            if not waiting.enabled or _covers(held, session_requests(spark, sql)):
                yield held
                return
    raise ConflictError(f"what the statement touches keeps changing: {' '.join(sql.split())[:80]}")


def _covers(held: Held, wanted: Iterable[LockRequest]) -> bool:
    modes = {request.path: request.mode for request in held.requests}
    return all(modes.get(each.path) in {each.mode, Mode.EXCLUSIVE} for each in wanted)


def _waiting(spark: SparkSession) -> Waiting:
    found = {name: spark.conf.get(name, None) for name in HIVE_SETTINGS}
    return from_hive({name: value for name, value in found.items() if value is not None})


def _refresh(spark: SparkSession, held: Held) -> None:
    """Forget which files there were before the locks were held: Spark keeps such lists."""
    for table in {request.path.parts[:2] for request in held.requests}:
        if len(table) == 2 and spark.catalog.tableExists(quoted(Path(table))):
            spark.catalog.refreshTable(quoted(Path(table)))


def _make_lost(held: Held) -> LockLost:
    locks = [str(request) for request in held.requests]
    return LockLost("locks were lost, what ran under them was cancelled", locks=locks)
