"""Searches that go on in the background, with what is known of the unfinished."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from recovery.bounds import ReadLimits, Stop
from recovery.console.search import (
    MAX_KEPT,
    UNWATCHED_MS,
    Search,
    Searches,
    Unfinished,
    UnfinishedScan,
)
from recovery.search import COUNT, Query
from tests.unit.test_console_unfinished import scan_all
from tests.unit.test_search import NOW_MS, Fetching, Rows
from tests.unit.worlds import X
from txn.errors import NotApplied
from txn.model import Mutation, Row
from txn.protocol.row import new_row_key
from txn.protocol.statuses import Status
from txn.request import Request

FEW = ReadLimits(rows=100)
PATIENCE_S = 30
LOCKED = Query(statuses=frozenset({Status.LOCKED}))
Make = Callable[..., Searches]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make searches of some rows; all are ended with the test."""
    made: list[Searches] = []

    def start(rows: Rows, unfinished: Unfinished | None = None, **changes: Any) -> Searches:
        context = replace(rows.context, **changes)
        made.append(Searches(context, FEW, lambda: unfinished))
        return made[-1]

    yield start
    for each in made:
        each.close()


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def list_found(search: Search) -> list[bytes]:
    return [row.row_key for row in search.rows]


def put_needle(rows: Rows, number: int = 2_000) -> bytes:
    """Put many rows, and one before them that names X."""
    rows.put([new_row_key(NOW_MS - at, at) for at in range(number)])
    request = Request((Mutation(X, b"1"),))
    (needle,) = rows.put([new_row_key(NOW_MS - number, number)], request=request)
    return needle


def test_a_search_goes_on_until_it_has_found_what_is_far_back(make: Make) -> None:
    """A page reads a hundred rows; the rest is read while a person watches."""
    rows = Rows()
    needle = put_needle(rows)
    searches = make(rows)
    search = searches.find(Query(key=X), None, again=True)
    wait_until(lambda: not search.is_running)
    assert list_found(search) == [needle]
    assert (search.page.read, search.page.next, search.error) == (2_001, None, None)
    assert searches.find(Query(key=X), None, again=False) is search
    assert searches.find(Query(key=X), None, again=True) is not search


def test_a_full_page_needs_no_background(make: Make) -> None:
    """The next one is a click away."""
    rows = Rows()
    rows.put([new_row_key(NOW_MS - at, at) for at in range(2_000)])
    search = make(rows).find(Query(), None, again=True)
    assert (search.is_running, len(search.rows), search.page.read) == (False, COUNT, COUNT)
    assert search.page.stopped is Stop.FOUND


class Waiting(Fetching):
    """A store that lets so many rows be read in the background, and then waits."""

    allowed = 0

    def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
        for row in super().scan(*args, **options):
            if threading.current_thread().name.startswith("txn-console-search"):
                wait_until(lambda: self.allowed > 0)
                self.allowed -= 1
            yield row


def test_a_search_says_how_far_it_has_come(make: Make) -> None:
    """In rows, and as a part of the time that is left."""
    rows = Rows()
    put_needle(rows)
    store = Waiting(rows.store)
    store.allowed = 1 + 900
    search = make(rows, store=store).find(Query(key=X), None, again=True)
    assert search.is_running
    wait_until(lambda: search.page.read == 1_000)
    assert search.done == pytest.approx(900 / 1_900, abs=0.01)
    store.allowed = 10_000
    wait_until(lambda: not search.is_running)
    assert len(search.rows) == 1


def test_a_search_that_nobody_watches_rests(make: Make) -> None:
    """A table of 100 million rows is not read for nobody; who comes back finds it going on."""
    rows = Rows()
    put_needle(rows)
    store = Waiting(rows.store)
    store.allowed = 50
    searches = make(rows, store=store)
    search = searches.find(Query(key=X), None, again=True)
    rows.clock.advance(UNWATCHED_MS)
    store.allowed = 10_000
    wait_until(lambda: not search.is_running)
    assert (search.rows, search.error) == ([], None)
    assert search.page.read < 2_000
    assert searches.find(Query(key=X), None, again=False) is search
    wait_until(lambda: not search.is_running)
    assert (len(search.rows), search.page.read) == (1, 2_001)


def test_a_search_that_is_watched_goes_on(make: Make) -> None:
    """Each time that its page is brought up to date."""
    rows = Rows()
    put_needle(rows)
    store = Waiting(rows.store)
    store.allowed = 50
    searches = make(rows, store=store)
    search = searches.find(Query(key=X), None, again=True)
    rows.clock.advance(UNWATCHED_MS)
    assert searches.find(Query(key=X), None, again=False) is search
    store.allowed = 10_000
    wait_until(lambda: not search.is_running)
    assert (len(search.rows), search.error) == (1, None)


def test_few_searches_go_on_at_once(make: Make) -> None:
    """The oldest one gives way."""
    rows = Rows()
    put_needle(rows)
    store = Waiting(rows.store)
    searches = make(rows, store=store)
    found = []
    for number in range(MAX_KEPT + 1):
        found.append(searches.find(Query(label=f"{number}"), None, again=True))
    store.allowed = 10**9
    wait_until(lambda: not any(search.is_running for search in found))
    assert found[0].page.next is not None
    assert all(search.page.next is None for search in found[1:])
    assert searches.find(Query(label="0"), None, again=False) is not found[0]


def test_an_error_of_the_store_ends_a_search_and_is_shown(make: Make) -> None:
    """What was found until then is shown with it."""
    rows = Rows()
    put_needle(rows)

    class Failing(Fetching):
        def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
            for row in super().scan(*args, **options):
                if self.rows > 500:
                    rows.clock.advance(600_000)
                    raise NotApplied("it is away")
                yield row

    search = make(rows, store=Failing(rows.store)).find(Query(key=X), None, again=True)
    wait_until(lambda: not search.is_running)
    assert search.error is not None and "it is away" in search.error
    assert 100 <= search.page.read <= 500


def test_an_unforeseen_failure_ends_a_search_and_not_the_console(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has what it was."""
    rows = Rows()
    put_needle(rows)

    class Broken(Fetching):
        def scan(self, *args: Any, **options: Any) -> Iterator[Row]:
            if self.rows > 100:
                raise ZeroDivisionError
            yield from super().scan(*args, **options)

    search = make(rows, store=Broken(rows.store)).find(Query(key=X), None, again=True)
    wait_until(lambda: not search.is_running)
    assert search.error == "the search failed; the log of the console says why"
    assert "ZeroDivisionError" in caplog.text


# ---------------------------------------------------------------------- what is known already


def put_locked(rows: Rows, number: int = 120) -> list[bytes]:
    """Put transactions that are locked behind so many finished ones that no page comes to them."""
    rows.put([new_row_key(NOW_MS - at, at) for at in range(1_000)])
    locked = [new_row_key(NOW_MS - 10**6 - at, at) for at in range(number)]
    return rows.put(locked, Status.LOCKED)


def test_what_is_known_to_be_unfinished_is_shown_at_once(make: Make) -> None:
    """A page reads what is new by itself, and takes the rest from the last scan of the table."""
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


def test_what_is_known_is_searched_by_its_other_facts(make: Make) -> None:
    """A status with a key finds those that name it."""
    rows = Rows()
    put_locked(rows)
    unfinished = scan_all(UnfinishedScan(rows.context))
    search = make(rows, unfinished).find(replace(LOCKED, key=X), None, again=True)
    wait_until(lambda: not search.is_running)
    assert (search.rows, search.page.next, search.error) == ([], None, None)


def test_what_is_known_so_far_is_shown_while_the_search_goes_on(make: Make) -> None:
    """The first scan of a large table takes its time."""
    rows = Rows()
    locked = put_locked(rows, 10)
    unfinished = replace(scan_all(UnfinishedScan(rows.context)), is_complete=False)
    store = Waiting(rows.store)
    search = make(rows, unfinished, store=store).find(LOCKED, None, again=True)
    assert search.is_running
    assert list_found(search) == locked
    store.allowed = 10**9
    wait_until(lambda: not search.is_running)
    assert (list_found(search), search.as_of) == (locked, None)
    assert search.page.stopped is Stop.BEGINNING


@pytest.mark.parametrize("statuses", [{Status.LOCKED, Status.COMPLETE}, {None}, None])
def test_what_may_be_finished_is_not_known(make: Make, statuses: Any) -> None:
    """The scan for the unfinished has not seen it."""
    query = Query(statuses=None if statuses is None else frozenset(statuses))
    assert not query.is_for_unfinished
    assert LOCKED.is_for_unfinished
