"""`txn get`: an atomic read of any number of cells."""

from __future__ import annotations

from typing import Annotated

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    JsonOption,
    StoreOption,
    TransactionsOption,
    open_engine,
    print_json,
)
from recovery.documents import cell_document
from txn.text import escape, key_text, parse_key


def get(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="table/row/family:column; \\xNN stands for a byte."),
    ],
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Print cells as of one instant: each transaction is seen wholly or not at all.

    Example: txn get accounts/alice/d:balance accounts/bob/d:balance
    """
    wanted = [parse_key(key) for key in keys]
    with open_engine(store, transactions) as engine:
        cells = engine.read(wanted)
    for key in wanted:
        cell = cells[key]
        if as_json:
            print_json(cell_document(key, cell))
        elif cell is None:
            typer.echo(f"{key_text(key)}  absent")
        else:
            typer.echo(f"{key_text(key)}  {cell.timestamp}  {escape(cell.value)}")
