"""`txn table`: make the tables that transactions write to."""

from __future__ import annotations

from typing import Annotated

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    JsonOption,
    StoreOption,
    TransactionsOption,
    print_json,
)
from txn.client.connect import connect

app = typer.Typer(help="Make tables.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `create` a command of its own."""


@app.command("create")
def create(
    table: Annotated[str, typer.Argument(help="The name of the table.")],
    families: Annotated[list[str], typer.Argument(metavar="FAMILY...", help="Its families.")],
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Make a table, its missing families, and the store itself if it is new."""
    with connect(store, transactions=transactions) as engine:
        engine.ensure_table(table, families)
    if as_json:
        print_json({"table": table, "families": families})
    else:
        typer.echo(f"table {table} has the families {', '.join(families)}")
