"""`txn get` and `txn commit`: read cells of one instant, and commit one transaction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recovery.commands import common
from recovery.documents import cell_document, parse_request
from txn.client.connect import connect
from txn.errors import AbortedError
from txn.text import escape, key_text, parse_key, reason_text


def get(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="table/row/family:column; \\xNN stands for a byte."),
    ],
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Print cells as of one instant: each transaction is seen wholly or not at all.

    Example: txn get accounts/alice/d:balance accounts/bob/d:balance
    """
    wanted = [parse_key(key) for key in keys]
    with connect(store, transactions=transactions, create=False) as engine:
        cells = engine.read(wanted)
    for key in wanted:
        cell = cells[key]
        if as_json:
            common.print_json(cell_document(key, cell))
        elif cell is None:
            typer.echo(f"{key_text(key)}  absent")
        else:
            typer.echo(f"{key_text(key)}  {cell.timestamp}  {escape(cell.value)}")


def commit(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A JSON document; - reads the standard input.")
    ],
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Commit the mutations of a document if all its assertions hold.

    Exit code 0: committed. 1: aborted; an assertion failed, or other transactions were in the way,
    and nothing was written. 2: it could not be tried, or its outcome is unknown.

    Example: txn commit request.json
    """
    request = parse_request(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    with (
        connect(store, transactions=transactions, create=False) as engine,
        common.report_refusal(AbortedError, text=reason_text),
    ):
        done = engine.commit(
            request.mutations,
            request.assertions,
            once=request.once,
            once_retention_ms=request.once_retention_ms,
            labels=request.labels,
        )
    row_key = escape(done.transaction)
    repeated = "  (had been committed before)" if done.repeated else ""
    common.print_result(
        as_json,
        {"transaction": row_key, "timestamp": done.timestamp, "repeated": done.repeated},
        f"committed  {row_key}  at {done.timestamp}{repeated}",
    )
