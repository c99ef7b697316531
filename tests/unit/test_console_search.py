"""What the console finds by reading on: what is unfinished, what is searched for, all of it as a
download, and how much of a check is done."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from recovery.bounds import ReadLimits, Stop
from recovery.console import search
from recovery.console.downloads import COLUMNS, Download, make_harmless, stream_csv, stream_json
from recovery.console.progress import CheckProgress
from recovery.console.search import (
    MAX_KEPT,
    UNKNOWN,
    Search,
    Searches,
    Unfinished,
    UnfinishedScan,
)
from recovery.fsck import check
from recovery.search import COUNT, Query, SearchPage
from tests.unit.test_search import ALL, NOW_MS, TXN, Fetching, Rows
from tests.unit.worlds import X
from txn.errors import NotApplied, StoreError
from txn.model import Edit, Family, Key, Mutation
from txn.protocol.row import column, new_row_key
from txn.protocol.statuses import FENCED, Status
from txn.request import Request
from txn.testing.faulty import Call, Fault, FaultyStore, Reply
from txn.text import key_text


def scan_all(scan: UnfinishedScan, ms: int = 1_000) -> Unfinished:
    """Go on to the end of a round."""
    while not (found := scan.advance(ms)).is_complete:
        pass
    return found


def scan_rows(rows: Rows) -> Unfinished:
    return scan_all(UnfinishedScan(rows.context))


def test_the_unfinished_are_counted_and_the_oldest_are_kept() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(500)])
    old = rows.put([b"01." + new_row_key(NOW_MS - 10**9, 1)], Status.LOCKED, at_ms=5)
    ahead = rows.put([new_row_key(NOW_MS + 10**9, 1)], Status.ASSERTED, at_ms=3)
    rows.put([b"00." + new_row_key(NOW_MS - at, at) for at in range(9)], Status.WRITTEN)
    rows.put([new_row_key(NOW_MS, 7_777)], Status.ABORTED)
    scan = UnfinishedScan(rows.context)
    found = scan_all(scan)
    assert found.statuses == {"0-WRITTEN": 9, "1-LOCKED": 1, "2-ASSERTED": 1}
    assert found.rows == 11
    assert [head.row_key for head in found.oldest[:2]] == [*ahead, *old]
    assert [(head.status, head.since) for head in found.oldest[:2]] == [
        (Status.ASSERTED, 3),
        (Status.LOCKED, 5),
    ]
    assert scan.latest == found
    assert found.has_all
    rows.put([*ahead, *old], Status.COMPLETE, at_ms=NOW_MS + 1)
    rows.clock.advance(5)
    again = scan_all(scan)  # a round begins anew
    assert (again.statuses["0-WRITTEN"], again.rows, again.as_of) == (9, 9, NOW_MS + 5)
    assert scan_rows(Rows()).rows == 0


def test_what_is_finished_is_not_sent() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - 100 * at, at) for at in range(20_000)])
    rows.put([new_row_key(NOW_MS - 100_000, 77_777)], Status.PUT)
    store = Fetching(rows.store)
    found = scan_all(UnfinishedScan(replace(rows.context, store=store)))
    assert found.rows == 1
    assert store.rows < 50
    assert store.calls["scan"] < 50


def test_a_step_that_fails_leaves_no_round_that_seems_whole() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(5)], Status.LOCKED)
    faulty = FaultyStore(rows.store, lambda call: Fault())
    scan = UnfinishedScan(replace(rows.context, store=faulty))
    failing = Fault(frozenset(), Reply.NOT_APPLIED)
    for failed in (1, 2):  # the look for buckets, and the first stretch
        scans = iter(range(1, 10))
        faulty.plan = lambda call, at=failed, seen=scans: (  # type: ignore[misc]
            failing if next(seen, 99) > at else Fault()
        )
        with pytest.raises(StoreError):
            scan.advance(1_000)
        assert scan.latest is None
    faulty.plan = lambda call: Fault()
    found = scan_all(scan)
    assert (found.statuses, found.is_complete) == ({"1-LOCKED": 5}, True)


@pytest.mark.parametrize("prefix", [b"", b"00."])
def test_rows_of_others_hide_nothing(prefix: bytes) -> None:
    rows = Rows()
    rows.put([prefix + new_row_key(NOW_MS, 1)], Status.LOCKED)
    for junk in (b"transaction.0junk", b"transaction.", b"transaction.zebra"):
        rows.store.write([Edit(column(TXN, prefix + junk, b"status"), b"x", NOW_MS)])
    strange = column(TXN, prefix + new_row_key(NOW_MS, 2), b"status")
    rows.store.write([Edit(strange, b"9-NEW", NOW_MS)])
    found = scan_rows(rows)
    assert (found.statuses, len(found.oldest)) == ({"1-LOCKED": 1, UNKNOWN: 1}, 1)


def test_a_status_is_as_old_as_the_server_says() -> None:
    """The timestamp of a fenced one is its owner's."""
    rows = Rows()
    row_key = new_row_key(NOW_MS, 1)
    cells = {b"status": (b"2-ASSERTED", 7), Status.ASSERTED.at: (b"", 9)}
    rows.store.write([Edit(column(TXN, row_key, name), *cell) for name, cell in cells.items()])
    for context, since in ((rows.context, 7), (replace(rows.context, rules=FENCED), 9)):
        assert scan_all(UnfinishedScan(context)).oldest[0].since == since


FEW = ReadLimits(rows=100)
LOCKED = Query(statuses=frozenset({Status.LOCKED}))


def make(rows: Rows, unfinished: Unfinished | None = None, **changes: Any) -> Searches:
    return Searches(replace(rows.context, **changes), FEW, lambda: unfinished)


def finish(searches: Searches, query: Query) -> Search:
    """Bring the page of a search up to date until the search is over."""
    while (search := searches.find(query, None, again=False)).is_running:
        time.sleep(0.001)  # another thread may be reading for it
    return search


def list_found(search: Search) -> list[bytes]:
    return [row.row_key for row in search.rows]


def put_needle(rows: Rows, number: int = 2_000) -> bytes:
    """Put many rows, and one before them that names X."""
    rows.put([new_row_key(NOW_MS - at, at) for at in range(number)])
    request = Request((Mutation(X, b"1"),))
    (needle,) = rows.put([new_row_key(NOW_MS - number, number)], request=request)
    return needle


def test_a_search_continues_until_it_has_found_what_is_far_back() -> None:
    rows = Rows()
    needle = put_needle(rows)
    searches = make(rows)
    first = searches.find(Query(key=X), None, again=True)
    search = finish(searches, Query(key=X))
    assert search.guard is first.guard
    assert list_found(search) == [needle]
    assert (search.page.read, search.page.next) == (2_001, None)
    assert searches.find(Query(key=X), None, again=False) == search
    assert searches.find(Query(key=X), None, again=True).guard is not search.guard


def test_few_searches_are_kept() -> None:
    rows = Rows()
    put_needle(rows)
    searches = make(rows)
    queries = [Query(label=f"{number}") for number in range(MAX_KEPT + 1)]
    found = [searches.find(query, None, again=True) for query in queries]
    assert searches.find(queries[1], None, again=False).guard is found[1].guard
    assert searches.find(queries[0], None, again=False).guard is not found[0].guard


def test_an_error_of_the_store_is_raised_and_the_search_continues_after_it() -> None:
    rows = Rows()
    needle = put_needle(rows)

    def fail(call: Call) -> Fault:
        rows.clock.advance(600_000)
        return Fault(frozenset(), Reply.NOT_APPLIED)

    store = FaultyStore(rows.store, lambda call: Fault())
    searches = make(rows, store=store)
    search = searches.find(Query(key=X), None, again=True)
    store.plan = fail
    with pytest.raises(NotApplied):
        searches.find(Query(key=X), None, again=False)
    assert (search.is_running, search.page.read) == (True, 100)
    store.plan = lambda call: Fault()
    assert list_found(finish(searches, Query(key=X))) == [needle]


def put_locked(rows: Rows, number: int = 120) -> list[bytes]:
    """Put transactions that are locked behind so many finished ones that no page comes to them."""
    rows.put([new_row_key(NOW_MS - at, at) for at in range(1_000)])
    locked = [new_row_key(NOW_MS - 10**6 - at, at) for at in range(number)]
    return rows.put(locked, Status.LOCKED)


def test_what_is_known_to_be_unfinished_is_shown_at_once() -> None:
    rows = Rows()
    locked = put_locked(rows)
    unfinished = scan_rows(rows)
    (new,) = rows.put([new_row_key(NOW_MS + 1, 1)], Status.LOCKED)
    rows.put([locked[3]], Status.COMPLETE, at_ms=NOW_MS + 1)
    searches, found, before = make(rows, unfinished), [], None
    for number in range(3):
        search = searches.find(LOCKED, before, again=True)
        assert not search.is_running
        assert search.as_of == (None if number else NOW_MS)  # a later page reads them itself
        found += list_found(search)
        before = search.page.next
        assert (before is None) == (number == 2)
    assert found == [new, *locked[:3], *locked[4:]]


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
    first = dict(zip(heading, lines[0], strict=True))
    assert (first["first_key"], first["labels"]) == (key_text(X), r"'=job=a\x0a,b")
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


def test_a_store_that_fails_on_the_way_leaves_no_half_file() -> None:
    (page,) = make(put_many(1)).read_pages(Query(), None)

    def fail() -> Iterator[SearchPage]:
        yield page
        raise NotApplied("the store is gone")

    document = read_json(Download(fail()))
    assert (len(document["transactions"]), document["complete"]) == (1, False)
    assert document["stopped"] == "the store is gone"
    assert read_csv(Download(fail()))[-1] == ["incomplete: stopped at the store is gone"]


def test_a_cell_is_no_formula_and_has_no_letter_that_is_obeyed() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1", "\uff0b1"):
        assert make_harmless(text) == f"'{text}"
    for letter in "\t\r\n\x07\x1b\u202e":
        cell = make_harmless(f"{letter}=1")
        assert cell.startswith("\\x") and cell.endswith("=1")
    for plain, text in (("", ""), (None, ""), (7, "7"), ("a=b", "a=b")):
        assert make_harmless(plain) == text


DATA = b"data"


def fill(rows: Rows, number: int) -> None:
    """Put unfinished transactions over an hour, and rows of data in two heaps."""
    rng = Random(1)
    for prefix in (b"00.", b"01."):
        keys = [
            prefix + new_row_key(NOW_MS - rng.randrange(3_600_000), rng.getrandbits(128))
            for _ in range(number)
        ]
        rows.put(keys, Status.LOCKED)
    rows.store.ensure_table(DATA, {b"d": Family()})
    names = [b"a%05d" % at for at in range(number)] + [b"zz%05d" % at for at in range(number)]
    rows.store.write([Edit(Key(name, b"d", b"x", DATA), b"1", 1) for name in names])


@pytest.mark.parametrize("tables", [(), (DATA,), (TXN, DATA)])
def test_progress_grows_with_what_is_read(tables: tuple[bytes, ...]) -> None:
    rows = Rows()
    fill(rows, 400)
    progress = CheckProgress(rows.context, tables)
    seen: list[int] = []

    def note(table: bytes, row: bytes) -> None:
        progress.reach(table, row)
        seen.append(progress.percent)

    assert progress.percent == 0
    for _ in check(rows.context, scan=tables, on_progress=note):
        pass
    assert seen == sorted(seen)
    assert seen[-1] == 99
    gaps = [later - earlier for earlier, later in zip([0, *seen], seen, strict=False)]
    assert max(gaps) <= 35, "a third of it in one leap"
    half = seen.index(next(percent for percent in seen if percent >= 50))
    assert 0.1 < half / len(seen) < 0.9
