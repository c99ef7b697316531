"""Run Apache Spark's statements under the locks they need, and jobs under locks or a lease.

The locks of a statement are determined before they are taken and again afterwards; if a table
changed in between, they are taken again. While the statement runs, a thread watches the locks. If
they are lost, it cancels the statement's jobs, and LockLost is raised whatever their result.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import unquote
from weakref import ref

from txn.errors import ConflictError, InvalidRequestError
from txn.host.extras import import_extra
from txn.host.holds import SafeEvent
from txn.locks.held import Held, LockLost
from txn.locks.hive.model import BUILT_IN, DATABASE_SETTING, Column, Table
from txn.locks.hive.settings import HIVE_SETTINGS, from_hive
from txn.locks.hive.sql import UNKNOWN_FUNCTION, requests
from txn.locks.manager import LockManager
from txn.locks.model import LockRequest, Mode, Path, Waiting
from txn.repeating import repeat

with import_extra("locks"):
    from txn.locks.hive.definitions import NOTHING
    from txn.locks.hive.words import (
        SESSION_CATALOGS,
        Args,
        WordReader,
        bind_values,
        read_statements,
        split_statements,
    )

with import_extra("spark"):
    from pyspark.errors import PySparkException
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.catalog import Function

MOST_TRIES = 5
WATCH_S = 0.2
INTERRUPT = "spark.job.interruptOnCancel"
TABLES = frozenset({"MANAGED", "EXTERNAL", "MATERIALIZED_VIEW", "STREAMING_TABLE"})
# Settings that change the meaning of strings and names in ways we do not model, and the sign that
# makes a statement depend on them (empty: every statement).
MEANINGS = {
    "spark.sql.parser.escapedStringLiterals": "\\",
    "spark.sql.ansi.doubleQuotedIdentifiers": '"',
    "spark.sql.caseSensitive": "",
    "spark.sql.path.enabled": "",
}
# Statements that name tables but do not read them.
READS_NOTHING = NOTHING | {"EXPLAIN", "UNCACHE"}
_RELATION = re.compile(r"'UnresolvedRelation \[([^\]]*)\]")
_COMMON = re.compile(r"\bCTE \[([^\]]*)\]")
_SETS = re.compile(r"\bset\b", re.IGNORECASE)


class SessionCatalog:
    """The tables and views of a Spark session, read again at each call."""

    def __init__(self, spark: SparkSession, databases: Iterable[str] = ()) -> None:
        """databases: those of unqualified names; by default the session's current one."""
        self._spark = spark
        self._databases = frozenset(databases) or {spark.catalog.currentDatabase().lower()}

    def table(self, name: Path) -> Table | None:
        self._refuse_temporary(name)
        sql_name = quoted(name)
        if not self._spark.catalog.tableExists(sql_name):
            return None
        kind = str(self._spark.catalog.getTable(sql_name).tableType)
        if kind == "VIEW":
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {sql_name}").collect()
            facts = {row[0]: row[1] for row in rows}
            # If Hive made the view, its names are qualified and its database is not recorded.
            namespace = facts.get("View Catalog and Namespace", name.parts[0]).rpartition(".")[2]
            query = bind_values(facts["View Text"])
            return Table(query=query, database=namespace.strip("`").lower())
        if kind not in TABLES:
            message = "neither a table nor a view of SQL"
            raise InvalidRequestError(message, name=str(name), kind=kind)
        columns = [each for each in self._spark.catalog.listColumns(sql_name) if each.isPartition]
        return Table(tuple(Column(each.name, each.dataType) for each in columns))

    def partitions(self, name: Path) -> Iterable[Sequence[str]]:
        for row in self._spark.sql(f"SHOW PARTITIONS {quoted(name)}").collect():
            parts = str(row[0]).split("/")
            yield tuple(unquote(part.partition("=")[2]) for part in parts)

    def _refuse_temporary(self, name: Path) -> None:
        """Refuse a temporary view: its name does not determine what it reads."""
        for each in self._names(name):
            if self._spark.catalog.tableExists(each) and (
                self._spark.catalog.getTable(each).isTemporary
            ):
                message = "a temporary view: name the tables that it reads"
                raise InvalidRequestError(message, view=name.parts[-1])

    def functions(self, name: Path) -> Sequence[Table]:
        found: list[Table] = []
        if name.parts[-1] in BUILT_IN and name.parts[-1] not in self._made_functions:
            return found
        for each in self._names(name):
            if self._spark.catalog.functionExists(each):
                found += _read_function(self._spark.catalog.getFunction(each))
        return found

    @cached_property
    def _made_functions(self) -> set[str]:
        """The session's own functions outside of databases; they hide built-in ones."""
        rows = self._spark.sql("SHOW USER FUNCTIONS").collect()
        return {str(row[0]).lower() for row in rows}

    def _names(self, name: Path) -> list[str]:
        """Return what a name may stand for, quoted for Spark: also a temporary object, if the
        statement may have left out the database."""
        is_bare = name.parts[0] in self._databases
        return [quoted(name), *([quoted(Path(name.parts[-1:]))] if is_bare else [])]


def _read_function(function: Function) -> list[Table]:
    """Return what a function reads, and its parameters' defaults. Functions in Java or Python read
    no table; the description of an SQL function contains its body."""
    if not str(function.className).startswith("sqlFunction"):
        return [Table()]
    try:
        facts = json.loads(function.description or "")
        query = facts.get("sqlFunction.query") or f"SELECT {facts['sqlFunction.expression']}"
        catalog, database = (facts[f"catalogAndNamespace.part.{part}"] for part in (0, 1))
    except (ValueError, KeyError) as error:
        raise InvalidRequestError(UNKNOWN_FUNCTION, function=function.name) from error
    if catalog not in SESSION_CATALOGS or facts.get("referredTempViewNames", "[]") != "[]":
        raise InvalidRequestError(UNKNOWN_FUNCTION, function=function.name)
    values = WordReader(facts.get("sqlFunction.inputParam") or "", "").read_defaults()
    queries = [query, *(f"SELECT {value}" for value in values)]
    return [Table(query=bind_values(each), database=database.lower()) for each in queries]


def quoted(name: Path) -> str:
    """Return the name of a table in the backquotes that Spark reads."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.parts)


def session_requests(spark: SparkSession, sql: str, args: Args | None = None) -> list[LockRequest]:
    """Return the locks that a statement needs in this session, after variable substitution. args:
    values of parameter markers, as in `spark.sql`."""
    text = replace_variables(spark, sql)
    current = spark.catalog.currentCatalog()
    if current not in SESSION_CATALOGS:
        raise InvalidRequestError("only the session's own catalogue is known", catalog=current)
    for setting, sign in MEANINGS.items():
        if sign in text and str(spark.conf.get(setting, "false")).lower() == "true":
            raise InvalidRequestError("not understood with this setting", setting=setting, at=sign)
    text = bind_values(text, args)
    settings = {DATABASE_SETTING: spark.catalog.currentDatabase()}
    each = list(read_statements(text, settings))
    catalog = SessionCatalog(spark, {words.database for words in each})
    found = requests(text, settings, catalog)
    locked = {request.path.parts[1] for request in found if len(request.path.parts) > 1}
    for words in each:
        if words.key not in READS_NOTHING:
            _check_parsed(spark, words.statement, locked)
    return found


def _check_parsed(spark: SparkSession, statement: str, locked: set[str]) -> None:
    """Refuse a statement in which Spark's parser finds a table that would not be locked."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect offers no parser
        return
    try:
        tree = session.sessionState().sqlParser().parsePlan(statement).treeString()
    except PySparkException:
        return  # a statement of Hive only: Spark does not run it
    common = {name for names in _COMMON.findall(tree) for name in names.lower().split(", ")}
    for name in _RELATION.findall(tree):
        *_, table = name.lower().split(", ")
        if table not in locked | common:
            raise InvalidRequestError("not understood", statement=statement[:60], table=name)


def replace_variables(spark: SparkSession, sql: str) -> str:
    """Replace variables, `${x}`, as this session does; over Spark Connect, replace none."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None or "${" not in sql:
        return sql
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession()
    sessions.setActiveSession(session)
    try:
        found = str(jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(sql))
    finally:
        sessions.setActiveSession(active.get() if active.isDefined() else session)
    if found != sql and len(split_statements(found)) > 1 and _SETS.search(found):
        raise InvalidRequestError("a variable beside SET: its value then is not known", given=sql)
    return found


def locked_sql(
    spark: SparkSession,
    manager: LockManager,
    sql: str,
    args: Args | None = None,
    *,
    waiting: Waiting | None = None,
) -> list[Row]:
    """Run a statement under its locks and return its rows; a query is executed, not only planned.

    args: values of parameter markers, as in `spark.sql`; data frames must be views or tables.
    waiting: how to wait; by default as the session's Hive settings say (`hive.lock.numretries`
    etc.). Raises LockDenied with nothing done. Raises LockLost if the locks were lost before the
    end: then the statement's jobs were cancelled, and what they wrote must be examined.
    """
    text = replace_variables(spark, sql)  # run exactly what was analysed
    with locked(spark, manager, text, args, waiting=waiting):
        return spark.sql(text, args).collect()  # type: ignore[arg-type]


@contextmanager
def locked(
    spark: SparkSession,
    manager: LockManager,
    sql: str,
    args: Args | None = None,
    *,
    waiting: Waiting | None = None,
) -> Iterator[Held]:
    """Hold the locks of one or more statements within the block. If they are lost, jobs that the
    block's thread started are cancelled. args: values of parameter markers."""
    if waiting is None:
        found = {name: spark.conf.get(name, None) for name in HIVE_SETTINGS}
        waiting = from_hive({name: value for name, value in found.items() if value is not None})
    for _ in range(MOST_TRIES):
        wanted = session_requests(spark, sql, args)
        with manager.hold(wanted, query=sql, waiting=waiting) as held:
            wanted = session_requests(spark, sql, args) if waiting.enabled else []
            modes = {request.path: request.mode for request in held.requests}
            if all(modes.get(each.path) in {each.mode, Mode.EXCLUSIVE} for each in wanted):
                with watched(spark, held):
                    yield held
                return
    raise ConflictError(f"what the statement accesses keeps changing: {' '.join(sql.split())[:80]}")


@contextmanager
def watched(spark: SparkSession, held: Held) -> Iterator[None]:
    """Run the block's jobs under held locks or a lease. If they are lost, jobs that the block's
    thread started are cancelled, and LockLost is raised whatever their result."""
    for table in {request.path.parts[:2] for request in held.requests}:
        if len(table) == 2 and spark.catalog.tableExists(quoted(Path(table))):
            spark.catalog.refreshTable(quoted(Path(table)))  # its files may be of before the locks
    context = spark.sparkContext
    tag = f"txn-locks-{uuid.uuid4().hex}"
    done = SafeEvent()
    in_use = ref(held)

    def cancel_if_lost() -> bool:
        held = in_use()
        if held is not None and held.lost:  # repeatedly: a statement may start several jobs
            context.cancelJobsWithTag(tag)
        return held is not None

    work = ("check locks", cancel_if_lost, done, WATCH_S)
    watcher = threading.Thread(target=repeat, args=work, name="txn-locks-watch", daemon=True)
    interrupts = context.getLocalProperty(INTERRUPT)
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    try:
        watcher.start()
        yield
    except Exception as error:
        if held.lost:
            locks = [str(request) for request in held.requests]
            message = "locks were lost, what ran under them was cancelled"
            raise LockLost(message, locks=locks) from error
        raise
    finally:
        done.set()
        if watcher.ident is not None:
            watcher.join()
        context.setLocalProperty(INTERRUPT, interrupts or "false")
        context.removeJobTag(tag)
    if held.requests:
        held.check()
