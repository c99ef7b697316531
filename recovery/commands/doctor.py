"""`txn doctor`: whether a store and its tables are safe for transactions, and how to mend them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    FOUND,
    JsonOption,
    StoreOption,
    TransactionsOption,
    console,
    print_json,
)
from recovery.doctor import Diagnosis, Verdict, examine
from recovery.opening import open_any_store

STYLES = {Verdict.FINE: "green", Verdict.CAUTION: "yellow", Verdict.WRONG: "red"}


def doctor(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Data tables to examine.", metavar="TABLE")
    ] = None,
    *,
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Examine the store, its clock and its tables, and say how to mend what is wrong.

    It writes to the transaction table, and deletes what it wrote. Exit code 1: something is wrong.

    Example: txn doctor accounts
    """
    wrong = False
    with open_any_store(store, transactions) as context:
        for diagnosis in examine(context, [table.encode() for table in tables or ()]):
            wrong = wrong or diagnosis.verdict is Verdict.WRONG
            if as_json:
                print_json(asdict(diagnosis) | {"verdict": diagnosis.verdict.value})
            else:
                console().print(_text(diagnosis))
    if wrong:
        raise typer.Exit(FOUND)


def _text(diagnosis: Diagnosis) -> Text:
    verdict = diagnosis.verdict
    text = Text.assemble(
        (f"{verdict.value:8} ", STYLES[verdict]), f"{diagnosis.about}: {diagnosis.seen}"
    )
    return text.append(f"\n{'':8} {diagnosis.mend}") if diagnosis.mend else text
