"""Values that a shell completes: those of the store that the command names, found in a second.

An error, or a store that does not answer, completes nothing and prints nothing.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from threading import Thread
from typing import Any

import typer

from recovery.commands.ls import NAMES
from recovery.opening import open_any_store, open_lock_view
from recovery.text import short_id
from txn.protocol.listing import scan_transactions
from txn.text import escape

PATIENCE_S = 1.0
MOST = 200

Given = Mapping[str, Any]  # the options of the command, by name


def add_completions(group: typer.Typer) -> None:
    """Let options and arguments complete the values that their metavars stand for."""
    for command in group.registered_commands:
        work: Any = command.callback
        work.__annotations__ = inspect.get_annotations(work, eval_str=True)
        for each in inspect.signature(work).parameters.values():
            for info in (each.default, *getattr(each.annotation, "__metadata__", ())):
                values = VALUES.get(getattr(info, "metavar", None) or "")
                if values is not None:
                    info.autocompletion = _complete(values)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        add_completions(inner.typer_instance)


def _complete(
    list_values: Callable[[Given], Iterable[str]],
) -> Callable[[typer.Context, str], list[str]]:
    def find(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = []

        def look() -> None:
            with suppress(Exception):
                found.extend(e for e in list_values(ctx.params) if e.startswith(incomplete))

        logging.disable()
        thread = Thread(target=look, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        return list(found)

    return find


def _list_tables(given: Given) -> list[str]:
    with open_any_store(given["store"], given["transactions"]) as context:
        return list(map(escape, context.store.list_tables()))


def _list_transactions(given: Given) -> list[str]:
    with open_any_store(given["store"], given["transactions"]) as context:
        rows = islice(scan_transactions(context, with_parts=False), MOST)
        return [short_id(row.row) for row in rows]


def _list_locked(given: Given) -> list[str]:
    with open_lock_view(given["locks"]) as reader:
        return [str(lock.request.path) for lock in reader.list_first(MOST).locks]


VALUES: Mapping[str, Callable[[Given], Iterable[str]]] = {
    "ID": _list_transactions,
    "PATH": _list_locked,
    "STATUS": lambda _: NAMES,
    "TABLE": _list_tables,
    "URI": lambda _: ("embedded:///", "hbase://", "hbase+thrift2://", "memory://", "txn://"),
}
