"""Lines in a store that an older version has written under names with capitals.

It told `Sales/Orders` from `sales/orders`. What it left there, explicit locks above all, would deny
nobody and could not be given back: so it is moved when the locks are first opened. What was granted
twice stays so until it is given back.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from txn.assertions import Version
from txn.client.block import OptimisticTransaction
from txn.client.engine import Engine
from txn.errors import AbortedError
from txn.locks.requests import Mode
from txn.locks.sessions import FAMILY
from txn.locks.stored.lines import (
    COLUMN,
    OBJECTS,
    Entry,
    LineState,
    decode_path,
    encode_line,
    parse_line,
)
from txn.model import Key, Mutation

NO_OBJECT = "/"
"""A row that is no path of an object."""


def move_lines(engine: Engine, table: str) -> None:
    """Move such lines to the names in lower case, unless somebody has done so before."""
    done = Key(NO_OBJECT, FAMILY, "lower", table)
    if engine.read([done])[done] is not None:
        return
    for row in engine.scan(table, columns=[(OBJECTS, COLUMN)]):
        if (at := str(decode_path(row.row)).encode()) != row.row:
            old, new = (Key(each, OBJECTS, COLUMN, table) for each in (row.row, at))
            engine.run(partial(_move, old=old, new=new))
    with suppress(AbortedError):  # somebody else is noting it
        engine.commit([Mutation(done, b"1")], [Version(done, None)])


def _move(t: OptimisticTransaction, old: Key, new: Key) -> None:
    if (former := t.get(old)) is not None:
        t.put(
            new, encode_line(_unite(parse_line(new.row, t.get(new)), parse_line(old.row, former)))
        )
        t.delete(old)


def _unite(one: LineState, other: LineState) -> LineState:
    """Return both lines as one, each ticket once, those who hold it before those who wait."""
    entries: dict[str, Entry] = {}
    for entry in (*one.line, *other.line):
        if entry.ticket not in entries or entry.mode is Mode.EXCLUSIVE:
            entries[entry.ticket] = entry
    line = sorted(entries.values(), key=lambda entry: not entry.granted)
    return LineState(max(one.token, other.token), tuple(line))
