"""`txn table`: make the tables that transactions write to, and let them change hands."""

from __future__ import annotations

from typing import Annotated

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    FOUND,
    JsonOption,
    StoreOption,
    TransactionsOption,
    YesOption,
    complain,
    confirm_stopped,
    print_json,
)
from recovery.opening import open_store_of
from recovery.takeover import find_databases, find_locks_held
from recovery.takeover import take_over as hand_over
from txn.client.connect import connect

app = typer.Typer(help="List, create and take over tables.", no_args_is_help=True)


@app.command("create")
def create(
    table: Annotated[str, typer.Argument(help="The name of the table.")],
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
    if as_json:
        print_json({"table": table, "families": families})
    else:
        typer.echo(f"table {table} has the families {', '.join(families)}")


@app.command("take-over")
def take_over(
    table: Annotated[str, typer.Argument(help="The name of the table.")],
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
        obstacles = list(find_locks_held(context, name))
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
