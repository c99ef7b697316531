"""Assertions, keys and bytes in JSON documents, such as `{"exact": key, "value": value}`.

docs/operations.md describes the format. An AssertionReader determines the form of keys and values.
By default a key is the text `table/row/family:column` or an object of its four parts, and a value
is a text or `{"base64": text}`. Every error names the place in the document.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from txn.assertions import COMPOUNDS, Assertion, Exact, GreaterThan, Not, Some, Version
from txn.errors import InvalidRequestError
from txn.model import Key

Document = dict[str, Any]
FORMS = {
    "exact": '{"exact": key, "value": value}',
    "greater": '{"greater": key, "value": value}',
    "version": '{"version": key, "timestamp": whole number or null}',
    "some": '{"some": key}',
    "not": '{"not": assertion}',
    "and": '{"and": [assertion, ..]}',
    "or": '{"or": [assertion, ..]}',
}


def parse_stored(text: str | bytes) -> Any:
    """Return stored JSON; raise ValueError if it is none, is nested too deeply, or has a text that
    UTF-8 cannot write."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def check_types(stored: Any, kinds: Mapping[str, Any]) -> None:
    """Raise ValueError unless this is a stored object with these fields, of these types."""
    if not isinstance(stored, dict) or not kinds.keys() <= stored.keys():
        raise ValueError("fields are missing")
    if not all(isinstance(stored[name], kind) for name, kind in kinds.items()):
        raise ValueError("a field is of another type")


def read_key(given: object, place: str) -> Key:
    """Return a key of a document."""
    if isinstance(given, str):
        return Key.parse(given)
    fields = read_fields(given, place, {"table", "row", "family", "column"}, set())
    part = {name: read_bytes(value, f"{place}.{name}") for name, value in fields.items()}
    return Key(part["row"], part["family"], part["column"], part["table"])


def read_bytes(given: Any, place: str) -> bytes:
    """Return a text as UTF-8, or the bytes of `{"base64": text}`."""
    match given:
        case str():
            return given.encode()
        case {"base64": str(encoded)} if len(given) == 1:
            try:
                return base64.b64decode(encoded, validate=True)
            except binascii.Error as error:
                raise refuse_part("not base64", place, encoded) from error
    raise refuse_part('bytes are a text or {"base64": text}', place, given)


@dataclass(frozen=True, slots=True)
class AssertionReader:
    """How to read keys and values in assertions; both functions get the place in the document."""

    key: Callable[[object, str], Key] = read_key
    value: Callable[[object, object, str], bytes] = lambda _, given, place: read_bytes(given, place)


PLAIN = AssertionReader()


def parse_assertion(item: object, place: str, reader: AssertionReader = PLAIN) -> Assertion:
    """Return the assertion in a part of a document; raise InvalidRequestError if it is none."""
    if not isinstance(item, dict) or not item:
        raise refuse_part('an assertion is an object such as {"some": key}', place, item)
    match item:
        case {"not": inner} if len(item) == 1:
            return Not(parse_assertion(inner, f"{place}.not", reader))
        case {"and": parts} | {"or": parts} if len(item) == 1:
            (name,) = item
            return COMPOUNDS[name](*parse_assertions(parts, f"{place}.{name}", reader))
        case {"exact": key, "value": value} | {"greater": key, "value": value} if len(item) == 2:
            make = Exact if "exact" in item else GreaterThan
            return make(reader.key(key, place), reader.value(key, value, f"{place}.value"))
        case {"version": key, "timestamp": int() | None as timestamp} if len(item) == 2:
            return Version(reader.key(key, place), timestamp)
        case {"some": key} if len(item) == 1:
            return Some(reader.key(key, place))
    meant = [form for name, form in FORMS.items() if name in item]
    if not meant:
        message = "not an assertion"
        raise InvalidRequestError(message, place=place, fields=sorted(item), known=list(FORMS))
    raise refuse_part(f"an assertion is {' or '.join(meant)}", place, item)


def parse_assertions(items: object, place: str, reader: AssertionReader = PLAIN) -> list[Assertion]:
    return [
        parse_assertion(item, f"{place}[{i}]", reader)
        for i, item in enumerate(read_list(items, place))
    ]


def read_list(given: object, place: str) -> list[object]:
    """Return a list of a document; raise InvalidRequestError for anything else."""
    if not isinstance(given, list):
        raise refuse_part("a list is needed", place, given)
    return given


def read_fields(given: object, place: str, needed: set[str], allowed: set[str]) -> Document:
    """Return an object that has all needed fields and only allowed ones, or InvalidRequestError."""
    if not isinstance(given, dict):
        raise refuse_part("an object is needed", place, given)
    unknown, missing = set(given) - needed - allowed, needed - set(given)
    if unknown or missing:
        raise InvalidRequestError(
            "the fields are not right",
            place=place,
            unknown=sorted(unknown) or None,
            missing=sorted(missing) or None,
        )
    return given


def refuse_part(message: str, place: str, given: object) -> InvalidRequestError:
    """Return the error for a part of a document, shown as JSON."""
    text = json.dumps(given, ensure_ascii=False, default=str)
    return InvalidRequestError(message, place=place, given=text)
