"""Downloads of a search: all its pages, within limits, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any

import pytest

from recovery.bounds import Stop
from recovery.console import search
from recovery.console.downloads import COLUMNS, Download, make_harmless, stream_csv, stream_json
from recovery.search import COUNT, Query, SearchPage
from tests.unit.test_console_search import make, put_needle
from tests.unit.test_search import ALL, NOW_MS, Rows
from tests.unit.worlds import X
from txn.errors import NotApplied
from txn.model import Mutation
from txn.protocol.row import new_row_key
from txn.request import Request
from txn.text import key_text


def put_many(count: int) -> Rows:
    rows = Rows()
    request = Request((Mutation(X, b"1"),), labels={"=job": "a\n,b"})
    rows.put([new_row_key(NOW_MS - at, at) for at in range(count)], request=request)
    return rows


def read(rows: Rows, query: Query = ALL, before: bytes | None = None) -> Download:
    return Download(make(rows).read_pages(query, before))


def read_json(found: Download) -> dict[str, Any]:
    document: dict[str, Any] = json.loads("".join(stream_json(found, NOW_MS)))
    return document


def read_csv(found: Download) -> list[list[str]]:
    return list(csv.reader("".join(stream_csv(found, NOW_MS)).splitlines(keepends=True)))


def test_a_download_has_each_transaction_once() -> None:
    rows = put_many(2 * COUNT + 1)
    document = read_json(read(rows))
    names = [each["transaction"] for each in document.pop("transactions")]
    assert names == sorted(names, reverse=True)
    assert len({*names}) == 2 * COUNT + 1
    whole = {"complete": True, "stopped": "the beginning of the table", "next": None}
    assert document == {**whole, "read": 2 * COUNT + 1}
    heading, *lines = read_csv(read(rows))
    assert tuple(heading) == COLUMNS
    assert [line[0] for line in lines] == names
    assert dict(zip(heading, lines[0], strict=True))["first_key"] == key_text(X)


def test_a_download_reads_on_where_a_page_of_reading_ends() -> None:
    rows = Rows()
    needle = put_needle(rows)
    document = read_json(read(rows, Query(key=X)))
    assert [each["transaction"] for each in document["transactions"]] == [needle.decode()]
    assert (document["complete"], document["read"]) == (True, 2_001)


def test_without_results_it_is_a_whole_document() -> None:
    assert read_json(read(Rows()))["transactions"] == []
    assert read_csv(read(Rows())) == [list(COLUMNS)]


@pytest.mark.parametrize(
    ("limit", "value", "stop"),
    [("MOST_DOWNLOADED", COUNT, Stop.ROWS), ("DOWNLOAD_MS", 0, Stop.TIME)],
)
def test_a_download_that_reaches_a_limit_says_so(
    limit: str, value: int, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, limit, value)
    rows = put_many(COUNT + 7)
    document = read_json(read(rows))
    assert (len(document["transactions"]), document["complete"]) == (COUNT, False)
    assert document["stopped"] == stop.value
    (last,) = read_csv(read(rows))[-1]
    assert last == f"incomplete: stopped at {stop.value}; continue with before={document['next']}"
    rest = read_json(read(rows, before=document["next"].encode()))
    assert (len(rest["transactions"]), rest["complete"]) == (7, True)


def test_a_search_by_age_stops_where_its_page_does() -> None:
    """Older transactions may match, if they were finished late."""
    rows = put_many(1)
    rows.put([new_row_key(NOW_MS - 10**7, 1)])
    document = read_json(read(rows, Query(newer_than_ms=1_000)))
    assert (len(document["transactions"]), document["complete"]) == (1, False)
    assert document["stopped"] == Stop.AGE.value


def test_a_store_that_fails_on_the_way_leaves_no_half_file() -> None:
    (page,) = make(put_many(1)).read_pages(Query(), None)

    def fail() -> Iterator[SearchPage]:
        yield page
        raise NotApplied("the store is gone")

    document = read_json(Download(fail()))
    assert (len(document["transactions"]), document["complete"]) == (1, False)
    assert document["stopped"] == "the store is gone"
    assert read_csv(Download(fail()))[-1] == ["incomplete: stopped at the store is gone"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1", "\uff0b1"])
def test_a_cell_is_no_formula(text: str) -> None:
    assert make_harmless(text) == f"'{text}"


@pytest.mark.parametrize("letter", ["\t", "\r", "\n", "\x07", "\x1b", "\u202e"])
def test_a_cell_has_no_letter_that_is_obeyed(letter: str) -> None:
    assert make_harmless(f"{letter}=1").endswith("=1")
    assert make_harmless(f"{letter}=1").startswith("\\x")


@pytest.mark.parametrize(("cell", "text"), [("", ""), (None, ""), (7, "7"), ("a=b", "a=b")])
def test_other_cells_stay_as_they_are(cell: object, text: str) -> None:
    assert make_harmless(cell) == text


def test_labels_are_harmless_too() -> None:
    line = dict(zip(COLUMNS, read_csv(read(put_many(1)))[1], strict=True))
    assert line["labels"] == r"'=job=a\x0a,b"
