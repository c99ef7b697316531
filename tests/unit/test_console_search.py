"""Searches that continue while a page is open, with what is known of the unfinished."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from recovery.bounds import ReadLimits, Stop
from recovery.console.search import (
    MAX_KEPT,
    MOST_AT_ONCE,
    Search,
    Searches,
    Unfinished,
    UnfinishedScan,
)
from recovery.search import COUNT, Query
from tests.unit.test_console_unfinished import scan_all
from tests.unit.test_search import NOW_MS, Fetching, Rows
from tests.unit.worlds import X
from txn.errors import NotApplied, TxnError
from txn.model import Mutation, Row
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status
from txn.request import Request

FEW = ReadLimits(rows=100)
PATIENCE_S = 30
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


def test_a_full_page_is_not_continued() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(2_000)])
    search = make(rows).find(Query(), None, again=True)
    assert (search.is_running, len(search.rows), search.page.read) == (False, COUNT, COUNT)
    assert search.page.stopped is Stop.FOUND


@pytest.mark.parametrize("again", [False, True])
def test_a_search_says_how_far_it_has_come(again: bool) -> None:
    rows = Rows()
    put_needle(rows)
    searches = make(rows)
    search = searches.find(Query(key=X), None, again=True)
    for _ in range(9):
        assert search.is_running
        search = searches.find(Query(key=X), None, again=again)
    assert search.page.read == 1_000
    assert search.done == pytest.approx(900 / 1_900, abs=0.01)
    assert len(finish(searches, Query(key=X)).rows) == 1


def test_each_update_reads_within_the_limits() -> None:
    rows = Rows()
    put_needle(rows)
    store = Fetching(rows.store)
    searches = make(rows, store=store)
    searches.find(Query(key=X), None, again=True)
    for _ in range(5):
        before = store.rows
        searches.find(Query(key=X), None, again=False)
        assert 100 <= store.rows - before <= 102  # and at first the oldest row of the table


class Waiting(Fetching):
    """A store that notes which threads wait for its scans, until it is let go."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.store)
        self.waiting: set[int] = set()
        self.is_let_go = threading.Event()
        self.is_let_go.set()

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        self.waiting.add(threading.get_ident())
        assert self.is_let_go.wait(PATIENCE_S)
        yield from super().scan(*args, **options)


def test_few_searches_continue_at_once() -> None:
    rows = Rows()
    put_needle(rows)
    store = Waiting(rows)
    searches = make(rows, store=store)
    queries = [Query(label=f"{number}") for number in range(MAX_KEPT)]
    for query in queries:
        searches.find(query, None, again=True)
    store.waiting.clear()
    store.is_let_go.clear()
    with ThreadPoolExecutor(MAX_KEPT) as pool:
        work = [pool.submit(finish, searches, query) for query in queries]
        deadline = time.monotonic() + PATIENCE_S
        while len(store.waiting) < MOST_AT_ONCE:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(0.1)  # the others would have come by now
        waiting = len(store.waiting)
        store.is_let_go.set()
        assert all(each.result().page.next is None for each in work)
    assert waiting == MOST_AT_ONCE


def test_two_pages_of_one_search_share_it() -> None:
    rows = Rows()
    needle = put_needle(rows)
    searches = make(rows)
    searches.find(Query(key=X), None, again=True)
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(finish, searches, Query(key=X)) for _ in range(2)]
        search, other = (each.result() for each in work)
    assert search == other
    assert (list_found(search), search.page.read) == ([needle], 2_001)


def test_an_update_does_not_wait_for_another_of_the_same_search() -> None:
    rows, query = Rows(), Query(key=X)
    put_needle(rows)
    searches = make(rows)
    search = searches.find(query, None, again=False)
    with searches._kept[query, None].guard:  # another request reads for it
        assert searches.find(query, None, again=False) == search
    assert searches.find(query, None, again=False) != search


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

    class Failing(Fetching):
        is_away = False

        def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
            for row in super().scan(*args, **options):
                if self.is_away:
                    rows.clock.advance(600_000)
                    raise NotApplied("it is away")
                yield row

    store = Failing(rows.store)
    searches = make(rows, store=store)
    search = searches.find(Query(key=X), None, again=True)
    store.is_away = True
    with pytest.raises(TxnError, match="it is away"):
        searches.find(Query(key=X), None, again=False)
    assert (search.is_running, search.page.read) == (True, 100)
    store.is_away = False
    assert list_found(finish(searches, Query(key=X))) == [needle]


def put_locked(rows: Rows, number: int = 120) -> list[bytes]:
    """Put transactions that are locked behind so many finished ones that no page comes to them."""
    rows.put([new_row_key(NOW_MS - at, at) for at in range(1_000)])
    locked = [new_row_key(NOW_MS - 10**6 - at, at) for at in range(number)]
    return rows.put(locked, Status.LOCKED)


def test_what_is_known_to_be_unfinished_is_shown_at_once() -> None:
    rows = Rows()
    locked = put_locked(rows)
    unfinished = scan_all(UnfinishedScan(rows.context))
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


def test_what_is_known_is_searched_by_its_other_facts() -> None:
    rows = Rows()
    put_locked(rows)
    unfinished = scan_all(UnfinishedScan(rows.context))
    searches = make(rows, unfinished)
    searches.find(replace(LOCKED, key=X), None, again=True)
    search = finish(searches, replace(LOCKED, key=X))
    assert (search.rows, search.page.next) == ([], None)


def test_what_is_known_so_far_is_shown_while_the_search_goes_on() -> None:
    rows = Rows()
    locked = put_locked(rows, 10)
    unfinished = replace(scan_all(UnfinishedScan(rows.context)), is_complete=False)
    searches = make(rows, unfinished)
    search = searches.find(LOCKED, None, again=True)
    assert search.is_running
    assert list_found(search) == locked
    search = finish(searches, LOCKED)
    assert (list_found(search), search.as_of) == (locked, None)
    assert search.page.stopped is Stop.BEGINNING


@pytest.mark.parametrize("statuses", [{Status.LOCKED, Status.COMPLETE}, {None}, None])
def test_what_may_be_finished_is_not_known(statuses: Any) -> None:
    query = Query(statuses=None if statuses is None else frozenset(statuses))
    assert not query.is_for_unfinished
    assert LOCKED.is_for_unfinished
