"""`txn commit`: one transaction, from a JSON document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    FOUND,
    JsonOption,
    StoreOption,
    TransactionsOption,
    complain,
    open_engine,
    print_result,
)
from recovery.documents import parse_request
from txn.errors import AbortedError
from txn.text import escape, reason_text


def commit(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A JSON document; - reads the standard input.")
    ],
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Commit the mutations of a document if all its assertions hold.

    Exit code 0: committed. 1: aborted; an assertion failed, or other transactions were in the way,
    and nothing was written. 2: it could not be tried, or its outcome is unknown.

    Example: txn commit request.json
    """
    request = parse_request(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    with open_engine(store, transactions) as engine:
        try:
            done = engine.commit(
                request.mutations,
                request.assertions,
                once=request.once,
                once_retention_ms=request.once_retention_ms,
                labels=request.labels,
            )
        except AbortedError as error:
            complain(reason_text(error))
            raise typer.Exit(FOUND) from error
    row_key = escape(done.transaction)
    repeated = "  (had been committed before)" if done.repeated else ""
    print_result(
        as_json,
        {"transaction": row_key, "timestamp": done.timestamp, "repeated": done.repeated},
        f"committed  {row_key}  at {done.timestamp}{repeated}",
    )
