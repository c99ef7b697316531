"""The results of a search as JSON or CSV, written while they are read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from recovery.search import SearchPage, row_document
from recovery.text import labels_text, time_text
from txn.documents import Document
from txn.errors import TxnError
from txn.protocol.row import TransactionRow
from txn.text import escape, key_text, show_text

COLUMNS = (
    *("transaction", "status", "created", "since", "age_ms", "keys", "first_key"),
    *("labels", "reason", "corrupt", "part_of"),
)
FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # how a formula of a spreadsheet begins


class Download:
    """The transactions of a search. After the last one: how many rows were `read`, the cursor of
    those that were not, and what it `stopped` at."""

    def __init__(self, pages: Iterable[SearchPage]) -> None:
        self._pages = pages
        self.read = 0
        self.next: bytes | None = None
        self.stopped = ""
        self.is_complete = False

    def __iter__(self) -> Iterator[TransactionRow]:
        try:
            for page in self._pages:
                self.read += page.read
                self.next, self.stopped = page.next, page.stopped.value
                yield from page.rows
        except TxnError as error:
            self.stopped = str(error)
        else:
            self.is_complete = self.next is None


Write: TypeAlias = Callable[[Download, int], Iterator[str]]


def stream_json(found: Download, now_ms: int) -> Iterator[str]:
    """Yield the text of an object: the `transactions`, and whether these are all."""
    yield '{"transactions": ['
    separator = "\n"
    for row in found:
        yield separator + json.dumps(_make_document(row, now_ms))
        separator = ",\n"
    end = {
        "complete": found.is_complete,
        "stopped": found.stopped,
        "next": None if found.next is None else escape(found.next),
        "read": found.read,
    }
    yield f"\n], {json.dumps(end)[1:]}\n"


def stream_csv(found: Download, now_ms: int) -> Iterator[str]:
    """Yield lines in the order of COLUMNS. If these are not all, the last line says so."""
    yield _write_line(COLUMNS)
    for row in found:
        document = _make_document(row, now_ms)
        times = {name: time_text(document[name]) for name in ("created", "since") if document[name]}
        texts = {**document, **times, "labels": labels_text(document["labels"])}
        yield _write_line([texts[name] for name in COLUMNS])
    if not found.is_complete:
        cursor = f"; continue with before={escape(found.next)}" if found.next else ""
        yield _write_line([f"incomplete: stopped at {found.stopped}{cursor}"])


def _make_document(row: TransactionRow, now_ms: int) -> Document:
    keys = row.buffer.request.keys if row.buffer else ()
    return row_document(row, now_ms) | {"first_key": key_text(keys[0]) if keys else None}


def _write_line(cells: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(map(make_harmless, cells))
    return line.getvalue()


def make_harmless(cell: object) -> str:
    """Return the text of a cell that no spreadsheet takes for a formula."""
    text = "" if cell is None else show_text(str(cell))
    return f"'{text}" if text.startswith(FORMULAS) else text
