"""Requests and results as JSON documents, as in `txn commit` and `--json`.

A request is `{"mutations": [...], "assertions": [...], "once": ..., "once_retention_ms": ...,
"labels": {...}}`; see docs/operations.md. Every error names the place in the document.
"""

from __future__ import annotations

import json
from typing import Any

from recovery.findings import Finding, Kind, Result, Tally
from recovery.inspect import Explanation, ValueChange
from txn.assertions import MAX_DEPTH
from txn.documents import (
    Document,
    parse_assertion,
    read_bytes,
    read_fields,
    read_key,
    read_list,
    refuse_part,
)
from txn.errors import InvalidRequestError
from txn.model import Cell, Delete, Key, Mutation
from txn.protocol.row import TransactionRow, created_ms, parent_of
from txn.request import Request
from txn.text import assertion_text, escape, key_text


def parse_request(text: str | bytes) -> Request:
    """Return the request in a JSON document, or raise InvalidRequestError."""
    try:
        return _request(json.loads(text))
    except InvalidRequestError:
        raise  # a ValueError of a valid document
    except ValueError as error:
        raise InvalidRequestError("not a JSON document", cause=str(error)) from error
    except RecursionError as error:
        raise InvalidRequestError("nested too deeply", limit=MAX_DEPTH) from error


def row_document(row: TransactionRow, now_ms: int) -> Document:
    """Return a line of `txn ls --json`."""
    request = row.buffer.request if row.buffer else None
    whole = parent_of(row.row_key)
    return {
        "transaction": escape(row.row_key),
        "status": str(row.status) if row.status else None,
        "state": row.state.value,
        "created": created_ms(row.row_key),
        "since": row.since,
        "age_ms": max(0, now_ms - row.since) if row.since else None,
        "keys": len(request.keys) if request else None,
        "labels": dict(request.labels) if request else {},
        "reason": row.reason,
        "corrupt": row.cause,
        "part_of": None if whole is None else escape(whole),
        "parts": None if row.parts is None else list(row.parts),
    }


def finding_document(finding: Finding) -> Document:
    return {
        "kind": finding.kind.value,
        "severity": finding.kind.severity.value,
        "transaction": escape(finding.transaction) if finding.transaction else None,
        "key": key_text(finding.key) if finding.key else None,
        "meaning": finding.kind.meaning,
        "remedy": finding.kind.remedy,
        "facts": {
            name: escape(fact) if isinstance(fact, bytes) else fact
            for name, fact in finding.facts.items()
        },
    }


def tally_document(tally: Tally, grace_ms: int) -> Document:
    """Return the last line of `txn fsck --json`; no finding has its kind, `summary`."""
    young = tally.young.counts
    return {
        "kind": "summary",
        "rows": tally.rows,
        "found": tally.found,
        "kinds": {kind.value: count for kind, count in tally.count_kinds().items()},
        "rolled_forward": tally.rolled_forward,
        "rolled_back": tally.rolled_back,
        "cleaned_up": tally.cleaned_up,
        "moved_on": tally.moved_on,
        "left": tally.left,
        "unfinished": {kind.value: young[kind] for kind in Kind if young[kind]},
        "oldest_ms": tally.young.oldest_ms,
        "grace_ms": grace_ms,
    }


def result_document(result: Result) -> Document:
    """Return the result of a repair: `repaired`, `nothing-to-do` or `left-alone`, and why."""
    words = {"Repaired": "repaired", "NothingToDo": "nothing-to-do", "LeftAlone": "left-alone"}
    return {"result": words[type(result).__name__], "why": result.why}


def explanation_document(found: Explanation) -> Document:
    row, request, whole = found.row, found.request, found.whole
    return {
        "transaction": escape(row.row_key),
        "state": row.state.value,
        "status": str(row.status) if row.status else None,
        "created": created_ms(row.row_key),
        "statuses": [
            {"status": str(each.status), "since": each.since, "after_ms": each.after_ms}
            for each in found.statuses
        ],
        "labels": dict(request.labels),
        "once": None if request.once is None else escape(request.once),
        "once_retention_ms": found.once_retention_ms,
        "lock_ttl_ms": row.buffer.lock_ttl_ms if row.buffer else None,
        "heartbeat": row.heartbeat or None,
        "timestamp": row.plan.timestamp if row.plan else None,
        "mutations": [_change_document(change) for change in found.changes],
        "assertions": [assertion_text(assertion) for assertion in request.assertions],
        "verdicts": [verdict.value for verdict in found.verdicts],
        "keys": len(request.keys),
        "keys_read": found.keys_read,
        "locks_held": [key_text(key) for key in found.held],
        "has_ranges": row.has_ranges,
        "reason": row.reason,
        "corrupt": row.cause,
        "part_of": None if whole is None else escape(whole),
        "parts": None if row.parts is None else list(row.parts),
        "part_rows": found.part_rows,
        "first_part": None if found.first_part is None else escape(found.first_part),
        "fsck": found.advice,
    }


def cell_document(key: Key, cell: Cell | None) -> Document:
    """Return a line of `txn get --json`; value and timestamp are null for an absent cell."""
    return {
        "key": key_text(key),
        "value": escape(cell.value) if cell else None,
        "timestamp": cell.timestamp if cell else None,
    }


def _request(given: object) -> Request:
    parts = read_fields(
        given,
        "the document",
        set(),
        {"mutations", "assertions", "once", "once_retention_ms", "labels"},
    )
    mutations = read_list(parts.get("mutations", []), "mutations")
    assertions = read_list(parts.get("assertions", []), "assertions")
    once, labels = parts.get("once"), parts.get("labels", {})
    if not isinstance(labels, dict):
        raise refuse_part("an object is needed", "labels", labels)
    return Request(
        tuple(_mutation(item, f"mutations[{i}]") for i, item in enumerate(mutations)),
        tuple(parse_assertion(item, f"assertions[{i}]") for i, item in enumerate(assertions)),
        None if once is None else read_bytes(once, "once"),
        labels,
        parts.get("once_retention_ms"),
    )


def _change_document(change: ValueChange) -> Document:
    return {
        "key": key_text(change.key),
        "new": None if change.new is None else escape(change.new),
        "delete": change.new is None,
        "old": escape(change.old.value) if change.old else None,
        "old_timestamp": change.old.timestamp if change.old else None,
        "old_unseen": change.unseen.value if change.unseen else None,
        "replaced": change.replaced,
        "held": change.held,
    }


def _mutation(item: Any, place: str) -> Mutation | Delete:
    match item:
        case {"put": key, "value": value} if len(item) == 2:
            return Mutation(read_key(key, place), read_bytes(value, f"{place}.value"))
        case {"delete": key} if len(item) == 1:
            return Delete(read_key(key, place))
    raise refuse_part('a mutation is {"put": key, "value": value} or {"delete": key}', place, item)
