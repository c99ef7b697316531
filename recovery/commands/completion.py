"""Values that a shell completes: those of the store that the command names, found in a second.

An error, or a store that does not answer, completes nothing and prints nothing.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
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

PATIENCE_S, MOST = 1.0, 200
KINDS = ("ID", "PATH", "STATUS", "TABLE", "URI")
SCHEMES = ("embedded:///", "hbase://", "hbase+thrift2://", "memory://", "txn://")


def add_completions(group: Any) -> None:
    """Let options and arguments of a group complete the values that their metavars stand for."""
    for command in group.registered_commands:
        work = command.callback
        work.__annotations__ = inspect.get_annotations(work, eval_str=True)
        for each in inspect.signature(work).parameters.values():
            for info in (each.default, *getattr(each.annotation, "__metadata__", ())):
                kind = (getattr(info, "metavar", None) or "").partition("|")[0]
                if kind in KINDS:
                    info.autocompletion = _complete(kind)
    for inner in group.registered_groups:
        add_completions(inner.typer_instance)


def _complete(kind: str) -> Callable[[typer.Context, str], list[str]]:
    def find(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = []

        def read_values() -> None:
            with suppress(Exception):
                found.extend(e for e in _list_values(kind, ctx.params) if e.startswith(incomplete))

        logging.disable()
        thread = Thread(target=read_values, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        return list(found)

    return find


def _list_values(kind: str, given: Mapping[str, Any]) -> Sequence[str]:
    if kind in ("STATUS", "URI"):
        return NAMES if kind == "STATUS" else SCHEMES
    if kind == "PATH":
        with open_lock_view(given["locks"]) as reader:
            return [str(lock.request.path) for lock in reader.list_first(MOST).locks]
    with open_any_store(given["store"], given["transactions"]) as context:
        if kind == "TABLE":
            return [escape(table) for table in context.store.list_tables()]
        rows = islice(scan_transactions(context, with_parts=False), MOST)
        return [short_id(row.row) for row in rows]
