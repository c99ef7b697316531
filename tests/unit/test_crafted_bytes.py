"""Bytes that nobody of ours wrote: a decoder raises its own error, and what it accepts is shown."""

from __future__ import annotations

import json
import sqlite3
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial, reduce
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from recovery.commands.requests import parse_request
from recovery.console.rendering import parse_number, parse_tables
from recovery.search import read_cursor, row_document
from recovery.text import error_text, labels_text
from txn.assertions import Exact, GreaterThan, Some, Version, is_outdated
from txn.errors import CorruptRowError, InvalidRequestError
from txn.leases import LeaseAlreadyExistsError, exclusive, open_leases
from txn.locks.model import path
from txn.locks.stored import Queue, _read_lease_ms
from txn.locks.zookeeper.queues import _decode_note
from txn.model import Cell, Delete, Key, Mutation, Row
from txn.protocol.codec import (
    Marker,
    Plan,
    decode_buffer,
    decode_child_counts,
    decode_first,
    decode_plan,
    decode_status,
    encode_answer,
    encode_buffer,
    encode_marker,
    encode_plan,
)
from txn.protocol.locks import decode_lock
from txn.protocol.row import FAMILY, decode_row, new_row_key
from txn.reading.feed import Offset, decode_offset
from txn.request import Request
from txn.service.messages import IDL, METHODS, decode_error, decode_message, encode_assertions
from txn.spark.options import SourceOptions
from txn.tables.catalog import _decode as decode_table
from txn.text import assertion_text

ROW = new_row_key(1_700_000_000_000, 7, database=b"txn")
A, B = (Key(row, "d", "x", "t") for row in "ab")
REQUEST = Request(
    (Mutation(A, b"1"), Delete(B)),
    (~(Exact(A, b"1") & GreaterThan(B, b"2")) | Some(B), Version(A, 7)),
    b"once",
    {"job": "a"},
)
TRIES = 300


ODD: list[Any] = [None, True, 0, -1, 1 << 63, 0.5, b"", b"\xff", "", "\x1b[1m"]
ODD += [[], {}, [[]], {"a": [1]}]
EMPTY: list[Any] = [[], {}]
ODD += [reduce(lambda it, _: [it], range(depth), EMPTY[0]) for depth in (99, 400, 950)]
ODD += [reduce(lambda it, _: {"a": it}, range(depth), EMPTY[1]) for depth in (99, 400, 950)]
ODD_JSON = [b"1e999", b"NaN", b"[" * 99_999, b'"\\ud800"']


def change(rng: Random, given: Any) -> Any:
    """Return the value with one part of its shape replaced, repeated, dropped or wrapped."""
    if isinstance(given, list | tuple) and given and rng.random() < 0.8:
        parts = list(given)
        place = rng.randrange(len(parts))
        match rng.randrange(8):
            case 0:
                del parts[place]
            case 1:
                parts.insert(place, parts[place])
            case _:
                parts[place] = change(rng, parts[place])
        return parts
    if isinstance(given, dict) and given and rng.random() < 0.8:
        name = rng.choice(list(given))
        changed = {**given, name: change(rng, given[name])}
        if rng.random() < 0.1:
            del changed[name]
        return changed
    if rng.random() < 0.1:
        for _ in range(rng.choice([1, 50, 120, 900])):
            given = ["not", given]
        return given
    return rng.choice(ODD)


def damage(rng: Random, given: bytes) -> bytes:
    """Return the bytes with some of them changed, dropped, repeated or added."""
    parts = bytearray(given)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(parts) + 1)
        match rng.randrange(4):
            case 0:
                parts[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del parts[place : place + rng.randint(1, 8)]
            case 2:
                parts[place:place] = parts[place : place + rng.randint(1, 8)]
            case _:
                parts[place:place] = rng.choice(
                    [b"\x00", b"\xff", b"\x1b", b"\xc0", b"[" * 3, b"9" * 30]
                )
    return bytes(parts)


def damage_text(rng: Random, given: str) -> str:
    return damage(rng, given.encode()).decode(errors="surrogateescape")


def damage_frame(rng: Random, sample: bytes) -> bytes:
    """Change the body, by its bytes or by its shape, and give it a valid checksum."""
    if rng.random() < 0.3:
        body = damage(rng, sample[5:])
    else:
        body = msgpack.packb(change(rng, msgpack.unpackb(sample[5:])))
    return b"\x01" + zlib.crc32(body).to_bytes(4, "big") + body


def damage_json(rng: Random, sample: Any) -> bytes:
    """Change JSON, which may then be nested more deeply than a decoder may go."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        text = json.dumps(change(rng, sample), default=str).encode()
    finally:
        sys.setrecursionlimit(limit)
    match rng.randrange(4):
        case 0:
            return damage(rng, text)
        case 1:
            return text.replace(b"1", rng.choice(ODD_JSON))
        case _:
            return text


def damage_message(rng: Random, given: Any) -> Any:
    """Change the fields of a message, in all its parts."""
    if isinstance(given, list):
        changed = [damage_message(rng, each) for each in given if rng.random() < 0.95]
        return changed * rng.choice([1] * 9 + [2, 300])
    if not hasattr(given, "thrift_spec"):
        return given
    made = type(given)()
    for _, name, *_ in type(given).thrift_spec.values():
        value = getattr(given, name)
        setattr(made, name, None if rng.random() < 0.1 else damage_message(rng, value))
    return made


def damage_row(rng: Random, cells: dict[bytes, bytes]) -> dict[bytes, bytes]:
    changed = {n: damage(rng, v) if rng.random() < 0.5 else v for n, v in cells.items()}
    changed[b"buffer"] = damage_frame(rng, cells[b"buffer"])
    return {name: value for name, value in changed.items() if rng.random() < 0.9}


def show(found: Any) -> None:
    """Show what was accepted as the commands do."""
    for assertion in found.assertions:
        assertion_text(assertion), repr(assertion), is_outdated(assertion, {A: Cell(b"1", 9)})
    labels_text(found.labels).encode()


def decode_whole_row(cells: dict[bytes, bytes]) -> None:
    """A row never raises: what does not decode is its `corrupt`."""
    row = decode_row(Row(ROW, {Key(ROW, FAMILY, n, b"txn"): Cell(v, 5) for n, v in cells.items()}))
    json.dumps(row_document(row, 1)).encode()
    error_text(row.cause or "")


BUFFER, PLAN = encode_buffer(REQUEST, 1, "a[1]@b"), encode_plan(Plan(5, (1, 0), (b"l",)))
CELLS = {b"status": b"2-ASSERTED", b"buffer": BUFFER, b"plan": PLAN, b"parts": b"1 2"}
CELLS |= {b"ranges": b"0", b"reason": b"because"}
NOTE = {"owner": "o", "host": "h", "query": "q", "since_ms": 1, "explicit": True, "token": 1}
QUEUED = {**NOTE, "ticket": "a", "mode": "X", "session": "a1", "granted": True}
del QUEUED["explicit"]
TABLE = {"number": 1, "families": {"d": {"versions": 1, "attributes": [["a", "b"]]}}}
DOCUMENT = {"mutations": [{"put": "t/a/d:x", "value": "1"}], "once": {"base64": "aGk="}}
DOCUMENT |= {"assertions": [{"not": {"some": "t/a/d:x"}}], "labels": {"a": "1"}}
OFFSET = {**Offset(5, 1, frozenset([ROW])).encode(), "low": float("inf")}
SEEN = IDL.Found(IDL.Key(b"r", b"d", b"x", b"t"), IDL.Cell(b"1", 5))
FAILED = IDL.AssertionFailed("m", b"t", encode_assertions(REQUEST.assertions[:1]), [SEEN])
ASKED = METHODS["commit"].encode((REQUEST.mutations, REQUEST.assertions, IDL.Options()))
MARKER = encode_marker(Marker(ROW, 5, b"d" * 32, encode_answer([1, ("x", {"a": (None,)})])))
ONCE = Key("once.t", "t", "done", "txn")
STORED: dict[str, tuple[Callable[[Any], Any], Callable[[Random, Any], Any], Any]] = {
    "buffer": (lambda given: show(decode_buffer(given).request), damage_frame, BUFFER),
    "plan": (decode_plan, damage_frame, PLAN),
    "parts": (decode_child_counts, damage, b"1 20 3"),
    "status": (decode_status, damage, b"2-ASSERTED"),
    "marker": (lambda given: decode_first(Cell(given, 1), ONCE), damage, MARKER),
    "row": (decode_whole_row, damage_row, CELLS),
    "lock": (decode_lock, damage, b"7 " + ROW),
    "queue": (partial(Queue.decode, b"r"), damage_json, {"token": 1, "queue": [QUEUED]}),
    "session": (
        lambda given: _read_lease_ms("s", Cell(given, 1)),
        damage_json,
        {"count": 1, "lease_ms": 1},
    ),
    "note": (partial(_decode_note, "n"), damage_json, NOTE),
    "table": (partial(decode_table, b"t"), damage_json, TABLE),
    "answer": (
        lambda given: decode_message(decode_error, given, CorruptRowError, "odd"),
        damage_message,
        FAILED,
    ),
}
GIVEN: dict[str, tuple[Callable[[Any], Any], Callable[[Random, Any], Any], Any]] = {
    "request": (
        lambda given: decode_message(METHODS["commit"].decode, given, InvalidRequestError, "odd"),
        damage_message,
        ASKED,
    ),
    "offset": (decode_offset, change, OFFSET),
    "document": (lambda given: show(parse_request(given)), damage_json, DOCUMENT),
    "cursor": (read_cursor, damage, ROW),
    "key": (Key.parse, damage_text, "t/a\\x2f/d:x"),
    "number": (parse_number, damage_text, "12"),
    "tables": (parse_tables, damage_text, "a b\\x00"),
    "option": (lambda text: SourceOptions({"n": text}).whole("n", 1), damage_text, "9" * 4_290),
    "path": (path, damage_text, "db/t/a=1%2f"),
}
UNREFUSED = ("lock", "row")


@pytest.mark.parametrize("name", [*STORED, *GIVEN])
def test_a_decoder_raises_nothing_but_its_own_error(name: str) -> None:
    """One such row would else end every command, and every read of its keys, with a traceback."""
    decode, change, sample = (STORED | GIVEN)[name]
    error = CorruptRowError if name in STORED else InvalidRequestError
    rng, refused = Random(50), 0
    for _ in range(TRIES):
        given = change(rng, sample)
        try:
            decode(given)
        except error:
            refused += 1
    assert refused or name in UNREFUSED


@pytest.mark.parametrize("column", ["user_name", "table_name", "end_utc", "lease_type"])
def test_a_row_of_leases_that_does_not_decode_is_named(column: str, tmp_path: Path) -> None:
    with open_leases(f"sqlite:///{tmp_path}/leases.sqlite") as service:
        service.grab_lease([exclusive("d/t")], 3600)
        for value in ("X'ff'", "'a//b'", "9e999", "'2026-13-45'", "''"):
            with closing(sqlite3.connect(tmp_path / "leases.sqlite")) as file:
                file.execute(f"UPDATE txn_leases SET {column} = {value}")
                file.commit()
            for call in (service.list_lease, lambda: service.grab_lease([exclusive("d/t")], 1)):
                with suppress(CorruptRowError, LeaseAlreadyExistsError):
                    call()
