"""Requests and results as JSON documents: what `txn commit` takes and what `--json` prints.

A request is `{"mutations": [...], "assertions": [...], "once": ..., "once_retention_ms": ...,
"labels": {...}}`; what its parts look like is in docs/operations.md. Every error names the
place in the document.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from recovery.findings import Finding, Result, Young
from recovery.inspect import Explanation, ValueChange
from recovery.text import parse_key
from txn.assertions import MAX_DEPTH, And, Assertion, Exact, GreaterThan, Not, Or, Some, Version
from txn.errors import InvalidRequestError
from txn.model import Cell, Delete, Key, Mutation
from txn.protocol.row import TransactionRow, created_ms
from txn.request import Request
from txn.text import assertion_text, escape, key_text

Document = dict[str, Any]


def parse_request(text: str | bytes) -> Request:
    """Return the request that a JSON document describes, or raise InvalidRequestError."""
    try:
        return _request(json.loads(text))
    except ValueError as error:
        raise InvalidRequestError("not a JSON document", cause=str(error)) from error
    except RecursionError as error:
        raise InvalidRequestError("nested too deeply", limit=MAX_DEPTH) from error


def row_document(row: TransactionRow, now_ms: int) -> Document:
    """Return a line of `txn ls --json`."""
    request = row.buffer.request if row.buffer else None
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
        "corrupt": row.corrupt,
    }


def finding_document(finding: Finding) -> Document:
    """Return what `--json` prints of a finding."""
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


def young_document(young: Young, grace_ms: int) -> Document:
    """Return what `--json` prints, in the form of a finding, of all that is not one yet."""
    facts = {kind.value: count for kind, count in young.counts.items()}
    return {
        "kind": "unfinished",
        "severity": "none",
        "transaction": None,
        "key": None,
        "meaning": "not finished, and younger than the grace: their clients may be at work",
        "remedy": "none yet: run fsck again after the grace, or with --grace 0s if all are dead",
        "facts": {**facts, "oldest_ms": young.oldest_ms, "grace_ms": grace_ms},
    }


def result_document(result: Result) -> Document:
    """Return what a repair came to: `repaired`, `nothing-to-do` or `left-alone`, and why."""
    words = {"Repaired": "repaired", "NothingToDo": "nothing-to-do", "LeftAlone": "left-alone"}
    return {"result": words[type(result).__name__], "why": result.why}


def explanation_document(found: Explanation) -> Document:
    """Return what `txn show --json` prints."""
    return {
        "transaction": escape(found.row_key),
        "state": found.state.value,
        "status": str(found.status) if found.status else None,
        "created": found.created,
        "statuses": [
            {"status": str(each.status), "since": each.since, "after_ms": each.after_ms}
            for each in found.statuses
        ],
        "labels": dict(found.labels),
        "once": None if found.once is None else escape(found.once),
        "once_retention_ms": found.once_retention_ms,
        "lease_ms": found.lease_ms,
        "beat": found.beat,
        "timestamp": found.timestamp,
        "mutations": [_change_document(change) for change in found.changes],
        "assertions": [assertion_text(assertion) for assertion in found.assertions],
        "locks_held": [key_text(key) for key in found.held],
        "has_ranges": found.has_ranges,
        "reason": found.reason,
        "corrupt": found.corrupt,
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
    parts = _fields(
        given,
        "the document",
        set(),
        {"mutations", "assertions", "once", "once_retention_ms", "labels"},
    )
    mutations = _list(parts.get("mutations", []), "mutations")
    assertions = _list(parts.get("assertions", []), "assertions")
    once = parts.get("once")
    return Request(
        tuple(_mutation(item, f"mutations[{i}]") for i, item in enumerate(mutations)),
        tuple(_assertion(item, f"assertions[{i}]") for i, item in enumerate(assertions)),
        None if once is None else _bytes(once, "once"),
        _mapping(parts.get("labels", {}), "labels"),
        parts.get("once_retention_ms"),
    )


def _change_document(change: ValueChange) -> Document:
    return {
        "key": key_text(change.key),
        "new": None if change.new is None else escape(change.new),
        "delete": change.new is None,
        "old": escape(change.old.value) if change.old else None,
        "old_timestamp": change.old.timestamp if change.old else None,
        "replaced": change.replaced,
        "held": change.held,
    }


def _mutation(item: Any, place: str) -> Mutation | Delete:
    match item:
        case {"put": key, "value": value} if len(item) == 2:
            return Mutation(_key(key, place), _bytes(value, f"{place}.value"))
        case {"delete": key} if len(item) == 1:
            return Delete(_key(key, place))
    raise _wrong('a mutation is {"put": key, "value": value} or {"delete": key}', place, item)


def _assertion(item: object, place: str) -> Assertion:
    if not isinstance(item, dict) or not item:
        raise _wrong('an assertion is an object such as {"some": key}', place, item)
    match item:
        case {"not": inner} if len(item) == 1:
            return Not(_assertion(inner, f"{place}.not"))
        case {"and": parts} if len(item) == 1:
            return And(*_assertions(parts, f"{place}.and"))
        case {"or": parts} if len(item) == 1:
            return Or(*_assertions(parts, f"{place}.or"))
    return _simple(item, place)


def _assertions(items: object, place: str) -> list[Assertion]:
    return [_assertion(item, f"{place}[{i}]") for i, item in enumerate(_list(items, place))]


def _simple(item: Document, place: str) -> Assertion:
    match item:
        case {"exact": key, "value": value} if len(item) == 2:
            return Exact(_key(key, place), _bytes(value, f"{place}.value"))
        case {"greater": key, "value": value} if len(item) == 2:
            return GreaterThan(_key(key, place), _bytes(value, f"{place}.value"))
        case {"version": key, "timestamp": int() | None as timestamp} if len(item) == 2:
            return Version(_key(key, place), timestamp)
        case {"some": key} if len(item) == 1:
            return Some(_key(key, place))
    known = ["exact", "greater", "version", "some", "not", "and", "or"]
    raise InvalidRequestError("not an assertion", place=place, fields=sorted(item), known=known)


def _key(given: object, place: str) -> Key:
    if isinstance(given, str):
        return parse_key(given)
    fields = _fields(given, place, {"table", "row", "family", "column"}, set())
    part = {name: _bytes(value, f"{place}.{name}") for name, value in fields.items()}
    return Key(part["row"], part["family"], part["column"], part["table"])


def _bytes(given: Any, place: str) -> bytes:
    """Return a text as UTF-8, and what `{"base64": text}` stands for."""
    match given:
        case str():
            return given.encode()
        case {"base64": str(encoded)} if len(given) == 1:
            try:
                return base64.b64decode(encoded, validate=True)
            except binascii.Error as error:
                raise _wrong("not base64", place, encoded) from error
    raise _wrong('bytes are a text or {"base64": text}', place, given)


def _list(given: object, place: str) -> list[object]:
    if not isinstance(given, list):
        raise _wrong("a list is needed", place, given)
    return given


def _mapping(given: object, place: str) -> Mapping[str, str]:
    if not isinstance(given, dict):
        raise _wrong("an object is needed", place, given)
    return given


def _fields(given: object, place: str, needed: set[str], allowed: set[str]) -> Document:
    if not isinstance(given, dict):
        raise _wrong("an object is needed", place, given)
    unknown, missing = set(given) - needed - allowed, needed - set(given)
    if unknown or missing:
        raise InvalidRequestError(
            "the fields are not right",
            place=place,
            unknown=sorted(unknown) or None,
            missing=sorted(missing) or None,
        )
    return given


def _wrong(message: str, place: str, given: object) -> InvalidRequestError:
    return InvalidRequestError(message, place=place, given=given)
