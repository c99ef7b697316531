"""`txn init`, `ping`, `convert`, `doctor`, `backup` and `table`: a database and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.text import Text
from typer import Argument, Option

from recovery.backup import NONE_MADE
from recovery.backup import backup as copy_store
from recovery.commands import common
from recovery.commands.common import Duration, time_option
from recovery.convert import convert as convert_database
from recovery.convert import find_databases, find_obstacles, find_table_obstacles, list_tables
from recovery.convert import take_over as take_over_table
from recovery.doctor import Verdict, examine
from recovery.findings import RETENTION_MS
from recovery.fsck import require_tables
from recovery.opening import open_any_store, open_store_of
from recovery.text import error_text
from txn.client.connect import connect
from txn.documents import Document
from txn.errors import InvalidRequestError
from txn.protocol.protocols import is_of_earlier_version
from txn.protocol.statuses import KeptRows, ProtocolName
from txn.stores.hbase.base import HBaseTables
from txn.stores.options import hide_login
from txn.text import escape, show_text

STYLES = {Verdict.FINE: "green", Verdict.CAUTION: "yellow", Verdict.WRONG: "red"}
UNNOTICED = "no client may be connected meanwhile, since one that stays connected does not notice"
STOPPED = "Is every client stopped?"

RowsOption = Annotated[
    KeptRows | None,
    Option(help="Whether each fenced transaction leaves a row, or only where needed (default)."),
]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The name of the table.")]

table_app = typer.Typer(help="List, create and change tables.", no_args_is_help=True)


def init(
    *,
    protocol: ProtocolName | None = Option(None, help="A new database gets six-phase by default."),
    rows: RowsOption = None,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Make the transaction table, and the store itself if it is new, and choose the protocol.

    A database that exists keeps its protocol and `--rows`. Asking for others is an error, exit code
    2: see `txn convert`.

    Example: txn init --store embedded:///var/lib/app
    """
    with connect(store, transactions=transactions, protocol=protocol, rows=rows) as engine:
        rules = engine.context.rules
    line = f"transaction table {transactions} has the protocol {rules}"
    document = {"transactions": transactions, "protocol": rules.name, "rows": rules.rows}
    common.print_result(as_json, document, line)


def ping(
    *,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Read one row of the store, which names the protocol of its database: for health checks.

    Exit code 0: the store answers, with or without a transaction table. 2: it does not.

    Example: txn ping --store hbase://zk1,zk2
    """
    with open_any_store(store, transactions) as context:
        is_there = context.store.describe(context.table) is not None
        protocol = context.rules.name if is_there else None
    about = f"has the protocol {protocol}" if protocol else "is not there yet"
    line = f"the store answers; transaction table {transactions} {about}"
    common.print_result(as_json, {"transactions": transactions, "protocol": protocol}, line)


def convert(
    protocol: ProtocolName = Argument(help="The protocol to change to."),
    *,
    rows: RowsOption = None,
    scan: list[str] | None = Option(
        None, metavar="TABLE", help="A table that transactions write to; repeat it for each one."
    ),
    retention: Duration = time_option(
        "--retention",
        "How long no lock may have changed; longer than any request can live.",
        RETENTION_MS,
    ),
    yes: common.YesOption = False,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Change the protocol of a database that no client uses and that has no transaction rows left,
    or, whatever rows it has, its `--rows`.

    Exit code 0: it has the protocol. 1: refused, with what stands in the way and what to do.

    Example: txn convert fenced --scan accounts
    """
    tables = [table.encode() for table in scan or ()]
    if store.startswith("txn:"):
        words = "a server keeps the protocol that it began with: stop it, and convert its store"
        raise InvalidRequestError(words, store=hide_login(store))
    with open_store_of(store, transactions) as context:
        found = context.rules.name
        if found != protocol:
            find = partial(find_obstacles, context, tables, retention_ms=retention)
            change = f"from {found} to {protocol}, in every table that is written"
            document = {"found": found, "protocol": found}
            _require_no_obstacles(find, change, document, yes, as_json)
        elif is_of_earlier_version(context) or rows not in (None, context.rules.rows):
            change = f"to rows: {rows}" if rows else f"to {protocol} of this version"
            common.confirm(f"{change}: {UNNOTICED}", STOPPED, yes)
        deleted = convert_database(context, protocol, tables, rows=rows)
    had = f"was {context.rules.rows}" if rows else "had it already"
    was = had if found == protocol else f"was {found}"
    shown = f"{protocol}, rows: {rows}" if rows else protocol
    common.print_result(
        as_json,
        {"found": found, "protocol": protocol, "deleted": deleted, "obstacles": []},
        f"{transactions} is {shown} ({was}); leftover cells deleted: {deleted}",
    )


def _require_no_obstacles(
    find: Callable[..., Iterator[str]], change: str, document: Document, yes: bool, as_json: bool
) -> None:
    """Return if nothing is in the way of a change and a person, or `--yes`, confirms that no client
    is connected. Otherwise print the obstacles and exit with code 1."""
    with common.row_bar(common.console(), "looking", hidden=as_json) as on_row:
        obstacles = list(find(on_row=on_row))
    if not obstacles:
        common.confirm(f"{change}: {UNNOTICED}", STOPPED, yes)
        return
    if as_json:
        common.print_json(document | {"deleted": 0, "obstacles": obstacles})
    else:
        for obstacle in obstacles:
            common.complain(obstacle)
    raise typer.Exit(common.FOUND)


def doctor(
    tables: list[str] | None = Argument(None, help="Data tables to examine.", metavar="TABLE"),
    *,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Examine the store, its clock and its tables, and say how to mend what is wrong.

    It writes to the transaction table, and deletes what it wrote. Exit code 1: something is wrong.

    Example: txn doctor accounts
    """
    wrong = False
    with open_any_store(store, transactions) as context:
        for diagnosis in examine(context, [each.encode() for each in tables or ()], uri=store):
            wrong = wrong or diagnosis.verdict is Verdict.WRONG
            if as_json:
                common.print_json(asdict(diagnosis) | {"verdict": diagnosis.verdict.value})
            else:
                about = show_text(f"{diagnosis.about}: {diagnosis.seen}")
                verdict = diagnosis.verdict
                text = Text.assemble((f"{verdict.value:8} ", STYLES[verdict]), about)
                if diagnosis.mend:
                    text.append(f"\n{'':8} {show_text(diagnosis.mend)}")
                common.console().print(text)
    if wrong:
        raise typer.Exit(common.FOUND)


def backup(
    store: str = Argument(metavar="STORE", help="Its URI, such as embedded:///data."),
    dest: str = Argument(metavar="DEST", help="A folder that is absent or empty."),
    *,
    as_json: common.JsonOption = False,
) -> None:
    """Copy an embedded store while it is in use, and check the copy.

    The copy has all commits up to one instant, and opens as embedded://DEST. Nothing is at DEST
    before the copy is complete and on disk. To restore it, see docs/operations.md.

    Exit code 2: no backup was made.

    Example: txn backup embedded:///var/lib/app /backup/monday
    """
    with common.row_bar(common.console(), "backup", unit="", hidden=as_json) as bar:
        try:
            size = copy_store(store, dest, on_step=bar.show_step)
        except KeyboardInterrupt:
            common.complain(f"interrupted: {NONE_MADE}")
            raise typer.Exit(common.COULD_NOT_RUN) from None
    line = f"backup of {size:,} bytes, checked: {dest}"
    common.print_result(as_json, {"path": dest, "bytes": size}, line)


@table_app.command("ls")
def list_command(store: common.StoreOption, as_json: common.JsonOption = False) -> None:
    """List the tables of the store, the database that each belongs to, and whether it is safe for
    transactions.

    A database is named by its transaction table. `txn doctor` says more about a table.

    Example: txn table ls
    """
    with open_any_store(store, common.DEFAULT_TRANSACTIONS) as context:
        tables = list(list_tables(context))
    if as_json:
        for found in tables:
            document = {
                "table": escape(found.name),
                "families": [escape(family) for family in found.families],
                "databases": [each and escape(each) for each in sorted(found.databases, key=str)],
                "protocol": found.protocol,
                "refusals": found.refusals and list(found.refusals),
                "endpoint": found.endpoint,
            }
            common.print_json(document)
        return
    rows = []
    for found in tables:
        databases = [escape(each or b"none") for each in sorted(found.databases, key=str)]
        allowed = "unknown" if found.refusals is None else "yes"
        safe = f"no: {error_text(found.refusals[0])}" if found.refusals else allowed
        row = (escape(found.name), " ".join(map(escape, found.families)), " ".join(databases))
        endpoint = {None: "", True: "yes", False: "no"}[found.endpoint]
        rows.append((*row, found.protocol or "", endpoint, safe))
    common.print_table(("table", "families", "database", "protocol", "endpoint", "safe"), rows)


@table_app.command("create")
def create(
    table: TableArgument,
    families: list[str] = Argument(metavar="FAMILY", help="Its families."),
    *,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Create a table, families that it lacks, and the store itself if it is new.

    Example: txn table create accounts d
    """
    with connect(store, transactions=transactions) as engine:
        engine.ensure_table(table, families)
    line = f"table {table} has the families {', '.join(families)}"
    common.print_result(as_json, {"table": table, "families": families}, line)


@table_app.command("endpoint")
def add_endpoint(
    tables: list[str] = Argument(metavar="TABLE", help="The names of tables."),
    *,
    store: common.StoreOption,
    as_json: common.JsonOption = False,
) -> None:
    """Let tables name HBase's endpoint, so that one request changes many rows of a region.

    New tables name it; the regions of others reopen. Through a gateway this prints the commands for
    HBase's shell instead, with exit code 1.

    Example: txn table endpoint accounts txn
    """
    command: str | None = None
    with open_any_store(store, common.DEFAULT_TRANSACTIONS) as context:
        require_tables(context, [table.encode() for table in tables])
        for table in tables:
            line, has_endpoint = f"table {table}: this store needs no endpoint", None
            if isinstance(context.store, HBaseTables):
                command = context.store.add_endpoint(table.encode())
                line, has_endpoint = command or f"table {table} names the endpoint", not command
            document = {"table": table, "endpoint": has_endpoint, "command": command}
            common.print_result(as_json, document, line)
    if command:
        raise typer.Exit(common.FOUND)


@table_app.command("take-over")
def take_over(
    table: TableArgument,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    yes: common.YesOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Let a table belong to the database with this transaction table, whatever it belonged to.

    Stop the clients of both databases first: one that stays connected does not notice.

    Exit code 0: it does. 1: refused, with what stands in the way and what to do.

    Example: txn table take-over accounts --transactions txn
    """
    name = table.encode()
    is_own = table != transactions  # this command may repair that for its own table
    with open_store_of(store, transactions, mends=True, is_own=is_own) as context:
        before = sorted(escape(each or b"none") for each in find_databases(context, name))
        document = {"table": table, "before": before, "transactions": transactions}
        was, find = ", ".join(before), partial(find_table_obstacles, context, name)
        _require_no_obstacles(find, f"{table} from {was} to {transactions}", document, yes, as_json)
        deleted = take_over_table(context, name)
    common.print_result(
        as_json,
        document | {"deleted": deleted, "obstacles": []},
        f"{table} belongs to {transactions} (before: {was}); leftover cells deleted: {deleted}",
    )
