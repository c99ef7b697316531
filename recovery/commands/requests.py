"""`txn get` and `txn commit`: read cells of one instant, and commit one transaction.

A request is the document `{"mutations": [...], "assertions": [...], "once": ...,
"once_retention_ms": ..., "once_content": ..., "labels": {...}, "validate": ...}`; see
docs/operations.md. Every error names the place in the document.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from typer import Argument

from recovery.commands import common
from recovery.inspect import read_holders
from txn.assertions import MAX_DEPTH
from txn.client.connect import connect
from txn.documents import parse_assertion, read_bytes, read_fields, read_key, read_list, refuse_part
from txn.errors import AbortedError, InvalidRequestError
from txn.model import Delete, Key, Mutation
from txn.request import Request
from txn.text import escape, holder_text, key_text, reason_text

FIELDS = [field.name for field in fields(Request) if field.init and field.name != "answer"]


def get(
    keys: list[str] = Argument(
        metavar="KEY", help="table/row/family:column; \\xNN stands for a byte."
    ),
    *,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Print cells as of one instant: each transaction is seen wholly or not at all.

    If a key is locked a moment later, its line names the transaction: see `txn show`.

    Example: txn get accounts/alice/d:balance accounts/bob/d:balance
    """
    wanted = [Key.parse(key) for key in keys]
    with connect(store, transactions=transactions, create=False) as engine:
        cells = engine.read(wanted)
        holders = read_holders(engine.context, wanted)  # as of a moment later
    for key in wanted:
        cell = cells[key]
        value, timestamp = (escape(cell.value), cell.timestamp) if cell else (None, None)
        line = f"{key_text(key)}  {timestamp}  {value}" if cell else f"{key_text(key)}  absent"
        holder, row = holders.get(key, (None, None))
        document = {"key": key_text(key), "value": value, "timestamp": timestamp}
        document["locked_by"] = None if holder is None else holder_text(holder)
        if holder is not None:
            owner = f" of {row.owner}" if row and row.owner else ""
            line += f"  locked by {holder_text(holder)}{owner}"
        common.print_result(as_json, document, line)


def commit(
    file: str = Argument(metavar="FILE", help="A JSON document; - reads the standard input."),
    *,
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
        done = engine.commit(**{name: getattr(request, name) for name in FIELDS})
    row_key = escape(done.transaction)
    repeated = "  (had been committed before)" if done.repeated else ""
    common.print_result(
        as_json,
        {"transaction": row_key, "timestamp": done.timestamp, "repeated": done.repeated},
        f"committed  {row_key}  at {done.timestamp}{repeated}",
    )


def parse_request(text: str | bytes) -> Request:
    try:
        return _request(json.loads(text))
    except InvalidRequestError:
        raise  # a ValueError of a valid document
    except ValueError as error:
        raise InvalidRequestError("not a JSON document", cause=str(error)) from error
    except RecursionError as error:
        raise InvalidRequestError("nested too deeply", limit=MAX_DEPTH) from error


def _request(given: object) -> Request:
    parts = read_fields(given, "the document", set(), set(FIELDS))
    mutations = read_list(parts.get("mutations", []), "mutations")
    assertions = read_list(parts.get("assertions", []), "assertions")
    once, content, labels = parts.get("once"), parts.get("once_content"), parts.get("labels", {})
    if not isinstance(labels, dict):
        raise refuse_part("an object is needed", "labels", labels)
    return Request(
        tuple(_mutation(item, f"mutations[{i}]") for i, item in enumerate(mutations)),
        tuple(parse_assertion(item, f"assertions[{i}]") for i, item in enumerate(assertions)),
        None if once is None else read_bytes(once, "once"),
        labels,
        parts.get("once_retention_ms"),
        parts.get("validate"),
        None if content is None else read_bytes(content, "once_content"),
    )


def _mutation(item: Any, place: str) -> Mutation | Delete:
    match item:
        case {"put": key, "value": value} if len(item) == 2:
            return Mutation(read_key(key, place), read_bytes(value, f"{place}.value"))
        case {"delete": key} if len(item) == 1:
            return Delete(read_key(key, place))
    raise refuse_part('a mutation is {"put": key, "value": value} or {"delete": key}', place, item)
