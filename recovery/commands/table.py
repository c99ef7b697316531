"""`txn table`: make the tables that transactions write to, and let them change hands."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    FOUND,
    JsonOption,
    StoreOption,
    TransactionsOption,
    YesOption,
    complain,
    confirm_stopped,
    console,
    make_table,
    print_json,
    print_result,
    row_bar,
)
from recovery.opening import open_any_store, open_store_of
from recovery.takeover import TableFacts, find_databases, find_locks_held, list_tables
from recovery.takeover import take_over as hand_over
from recovery.text import error_text
from txn.client.connect import connect
from txn.documents import Document
from txn.text import escape

app = typer.Typer(help="List, create and take over tables.", no_args_is_help=True)


@app.command("ls")
def ls(
    store: StoreOption,
    as_json: JsonOption = False,
) -> None:
    """List the tables of the store, the database that each belongs to, and whether it is safe for
    transactions.

    A database is named by its transaction table. `txn doctor` says more about a table.

    Example: txn table ls
    """
    table = make_table(("table", "families", "database", "protocol", "safe"))
    with open_any_store(store, DEFAULT_TRANSACTIONS) as context:
        for found in list_tables(context):
            if as_json:
                print_json(_document(found))
            else:
                table.add_row(*map(Text, _row(found)))
    if not as_json:
        console().print(table)


def _document(found: TableFacts) -> Document:
    return {
        "table": escape(found.name),
        "families": [escape(family) for family in found.families],
        "databases": [each and escape(each) for each in sorted(found.databases, key=str)],
        "protocol": found.protocol,
        "refusals": found.refusals and list(found.refusals),
    }


def _row(found: TableFacts) -> list[str]:
    databases = [escape(each or b"none") for each in sorted(found.databases, key=str)]
    allowed = "unknown" if found.refusals is None else "yes"
    return [
        escape(found.name),
        " ".join(map(escape, found.families)),
        " ".join(databases),
        found.protocol or "",
        f"no: {error_text(found.refusals[0])}" if found.refusals else allowed,
    ]


@app.command("create")
def create(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The name of the table.")],
    families: Annotated[list[str], typer.Argument(metavar="FAMILY", help="Its families.")],
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Create a table, families that it lacks, and the store itself if it is new.

    Example: txn table create accounts d
    """
    with connect(store, transactions=transactions) as engine:
        engine.ensure_table(table, families)
    line = f"table {table} has the families {', '.join(families)}"
    print_result(as_json, {"table": table, "families": families}, line)


@app.command("take-over")
def take_over(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The name of the table.")],
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a table belong to the database with this transaction table, whatever it belonged to.

    Exit code 0: it does. 1: refused, with what stands in the way and what to do.

    Example: txn table take-over accounts --transactions txn
    """
    name = table.encode()
    is_own = table != transactions  # else this is what mends it
    with open_store_of(store, transactions, mends=True, is_own=is_own) as context:
        before = sorted(each.decode() if each else "none" for each in find_databases(context, name))
        with row_bar(console(), "looking", hidden=as_json) as looked:
            obstacles = list(find_locks_held(context, name, looked))
        if not obstacles:
            confirm_stopped(f"{table} from {', '.join(before)} to {transactions}", yes)
            deleted = hand_over(context, name)
    if as_json:
        told = {"table": table, "before": before, "transactions": transactions}
        print_json(told | {"obstacles": obstacles})
    elif obstacles:
        for obstacle in obstacles:
            complain(obstacle)
    else:
        typer.echo(
            f"{table} belongs to {transactions} (before: {', '.join(before)}); leftover cells "
            f"deleted: {deleted}"
        )
    if obstacles:
        raise typer.Exit(FOUND)
