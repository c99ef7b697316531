"""Ranges through a server: scans, snapshots, and blocks that no phantom passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

from tests.integration.serving import wire
from tests.integration.test_emulator_transactional import endpoint, plain
from txn import (
    ConflictError,
    DeadlineError,
    Delete,
    Engine,
    InvalidRequestError,
    Key,
    Mutation,
    connect,
)
from txn.client.tasks import connect_async
from txn.clock import ManualClock, SystemClock
from txn.errors import NotApplied
from txn.model import MAX_ROW, Row
from txn.protocol.statuses import ProtocolName
from txn.server.listening import listen
from txn.server.ports import Server
from txn.service import server as transactional
from txn.service.messages import IDL, METHODS
from txn.service.server import PAGE_ROWS, Transactional
from txn.service.store import RemoteService, parse_server
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore


def key(row: str | bytes, column: str = "v") -> Key:
    return Key(row, "d", column, "data")


def names(rows: Any) -> list[bytes]:
    return [row.row for row in rows]


@pytest.fixture(params=get_args(ProtocolName))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    """An engine behind a server, and one on the server's own store."""
    with (
        endpoint(protocol=request.param) as (uri, store),
        connect(uri, table="data") as remote,
    ):
        remote.ensure_table("data", ["d"])
        yield remote, Engine(store, table="data")


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"start": "b"},
        {"stop": "b"},
        {"prefix": "b"},
        {"columns": [("d", "w")]},
        {"start": "x"},
    ],
)
def test_a_scan_gives_what_it_gives_without_a_server(
    pair: tuple[Engine, Engine], asked: dict[str, Any], snapshot: bool
) -> None:
    """Rows, cells, and what is absent."""
    remote, local = pair
    rows = ["a", "b", "bb", b"b\xff", "c", b"\xff" * 3]
    remote.commit([Mutation(key(row, name), b"1") for row in rows for name in ("v", "w")])
    remote.commit([Delete(key("bb")), Delete(key("c")), Delete(key("c", "w"))])
    found = list(remote.scan(snapshot=snapshot, **asked))
    assert found == list(local.scan(snapshot=snapshot, **asked))
    assert all(row.cells for row in found)


def test_a_scan_goes_from_page_to_page(
    pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row once, in order, also behind the longest row key that there is; a page may end for
    its rows or for its bytes."""
    remote, _ = pair
    longest = b"k" * MAX_ROW
    rows = sorted([longest, b"l", *(b"%05d" % number for number in range(2 * PAGE_ROWS + 1))])
    for start in range(0, len(rows), 500):
        remote.commit([Mutation(key(row), b"1") for row in rows[start : start + 500]])
    assert names(remote.scan()) == rows
    monkeypatch.setattr(transactional, "PAGE_BYTES", 1)
    assert names(remote.scan(start="00990")) == [row for row in rows if row >= b"00990"]


def test_a_scan_that_is_left_asks_for_no_more_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left at the server."""
    monkeypatch.setattr(transactional, "PAGE_ROWS", 2)
    pages: list[bytes] = []
    inner = Transactional.scan

    def counted(self: Transactional, span: Any, given: Any) -> Any:
        pages.append(span.start)
        return inner(self, span, given)

    monkeypatch.setattr(Transactional, "scan", counted)
    with endpoint() as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.commit([Mutation(key(f"{number}"), b"1") for number in range(9)])
        scanned = engine.scan()
        assert [next(scanned).row for _ in range(3)] == [b"0", b"1", b"2"]
        del scanned
        assert pages == [b"", b"1\0"]


def test_a_lost_page_is_asked_for_again(pair: tuple[Engine, Engine]) -> None:
    """It goes on where it was."""
    with endpoint() as (uri, _), wire(int(uri.rpartition(":")[2])) as between:
        between.lose = lambda answer: b"scan" in answer and not between.lost
        with connect(f"txn://127.0.0.1:{between.port}", table="data") as engine:
            engine.ensure_table("data", ["d"])
            engine.commit([Mutation(key("a"), b"1")])
            assert names(engine.scan()) == [b"a"]
            assert between.lost == 1


def test_what_is_left_of_deleted_rows_does_not_hold_up_a_page() -> None:
    """A page that finds nothing for long says how far it has come: no wait for it times out."""
    clock = ManualClock()

    class Slow(LocalStore):
        def scan(self, *args: Any, **kwargs: Any) -> Iterator[Row]:
            for row in super().scan(*args, **kwargs):
                clock.advance(700)
                yield row

    hosted = Transactional(Slow(MemoryStore(), clock), clock=clock)
    hosted.ensureTable(b"data", [b"d"], None)
    keys = [key(f"{number:02}") for number in range(20)]
    for change in (lambda k: Mutation(k, b"1"), Delete):
        hosted._engine.commit([change(each) for each in keys])
    page = hosted.scan(IDL.Span(b"data", b""), None)
    assert page.rows == []
    assert b"00" < page.following < b"19\0"


@pytest.mark.parametrize("way", ["commit", "read only"])
def test_a_phantom_is_a_conflict_through_a_server(pair: tuple[Engine, Engine], way: str) -> None:
    """The scanned range is looked at again by the server, under the locks."""
    remote, local = pair
    remote.commit([Mutation(key("a"), b"1")])
    with pytest.raises(ConflictError), remote.transaction() as t:
        assert names(t.scan(prefix="a")) == [b"a"]
        t.get(key("z"))
        local.commit([Mutation(key("ab"), b"1")])
        if way == "commit":
            t.put(key("sum"), b"1")
    assert local.read([key("sum")]) == {key("sum"): None}


def test_a_block_that_scans_is_run_again_and_commits(pair: tuple[Engine, Engine]) -> None:
    """What came into its range meanwhile is in the next run."""
    remote, local = pair
    remote.commit([Mutation(key("a1"), b"1")])
    tries: list[int] = []

    def count(t: Any) -> None:
        rows = t.scan(prefix="a")
        if not tries:
            local.commit([Mutation(key("a2"), b"1")])
        tries.append(len(rows))
        t.put(key("sum"), str(len(rows)))

    remote.run(count)
    assert tries == [1, 2]
    (cell,) = local.read([key("sum")]).values()
    assert cell is not None and cell.value == b"2"


def test_a_block_sees_its_own_writes_in_a_scan(pair: tuple[Engine, Engine]) -> None:
    """As it does without a server."""
    remote, _ = pair
    with remote.transaction() as t:
        t.put(key("a"), b"1")
        assert names(t.scan()) == [b"a"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda e: e.scan("absent"), "no such table"),
        (lambda e: e.scan("data", columns=[("q", "v")]), "no such family"),
        (lambda e: e.scan("data", snapshot=True, columns=[("q", "v")]), "no such family"),
        (lambda e: e.scan("absent", snapshot=True), "no such table"),
    ],
)
def test_a_range_that_cannot_be_read_is_an_invalid_request(
    pair: tuple[Engine, Engine], act: Any, message: str
) -> None:
    """At the call, and not at the first row."""
    for engine in pair:
        with pytest.raises(InvalidRequestError, match=message):
            act(engine)


def test_a_snapshot_that_is_too_large_for_an_answer_is_refused(
    pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the server has read all of it."""
    monkeypatch.setattr(transactional, "VIEW_BYTES", 1_000)
    remote, _ = pair
    remote.commit([Mutation(key(f"{number}"), b"x" * 300) for number in range(5)])
    with pytest.raises(InvalidRequestError, match="too many bytes for a snapshot limit=1000"):
        remote.scan(snapshot=True)
    assert len(list(remote.scan())) == 5


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_scan_whose_time_is_over_says_so(pair: tuple[Engine, Engine], snapshot: bool) -> None:
    """With a server and without."""
    for engine in pair:
        engine.commit([Mutation(key("a"), b"1")])
        with pytest.raises(DeadlineError):
            list(engine.scan(deadline_ms=0, snapshot=snapshot))
        with pytest.raises(DeadlineError):
            engine.read([key("a")], deadline_ms=0)
        assert names(engine.scan(deadline_ms=60_000, snapshot=snapshot)) == [b"a"]
        assert engine.read([key("a")], deadline_ms=60_000)[key("a")]


async def _scan_async(uri: str) -> list[bytes]:
    async with connect_async(uri, table="data") as engine:
        rows = [row.row async for row in engine.scan(deadline_ms=60_000)]
        async with engine.transaction() as t:
            assert names(await t.scan()) == rows
            t.put(key("sum"), b"1")
        return rows


def test_asyncio_scans_through_a_server() -> None:
    """As it does without one."""
    with endpoint() as (uri, _), connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        engine.commit([Mutation(key("a"), b"1")])
        assert asyncio.run(_scan_async(uri)) == [b"a"]


def test_any_client_commits_with_scanned_ranges() -> None:
    """The ranges may have no keys but those that the request names."""
    with endpoint() as (uri, _), plain(uri) as c:
        c.ensureTable(b"data", [b"d"])
        mutation = IDL.Mutation(IDL.Key(b"a1", b"d", b"v", b"data"), b"1")
        free = IDL.Span(b"data", b"a", b"b")
        c.commit([mutation], [], IDL.Options(scanned=[free]))
        page = c.scan(free)
        assert [row.row for row in page.rows] == [b"a1"]
        other = IDL.Mutation(IDL.Key(b"a2", b"d", b"v", b"data"), b"1")
        with pytest.raises(IDL.AssertionFailed):
            c.commit([other], [], IDL.Options(scanned=[free]))
        for bad in (
            IDL.Span(b"absent", b""),
            IDL.Span(b"data", b"", None, [IDL.Column(b"q", b"")]),
        ):
            with pytest.raises(IDL.Invalid):
                c.commit([other], [], IDL.Options(scanned=[bad]))
            with pytest.raises(IDL.Invalid):
                c.scan(bad)
        with pytest.raises(IDL.Invalid):
            c.commitMany([IDL.Request([other])], IDL.Options(scanned=[free]))
        (found,) = c.view([], [free]).spans
        assert [each.cell.value for each in found] == [b"1"]


def test_a_method_that_a_server_does_not_know_has_done_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients may be newer than their server."""
    monkeypatch.setitem(METHODS, "notThereYet", METHODS["ensureTable"])
    arguments = IDL.Transactional.ensureTable_args
    monkeypatch.setattr(IDL.Transactional, "notThereYet_args", arguments, raising=False)
    with endpoint() as (uri, _):
        service = RemoteService(*parse_server(urlsplit(uri)), SystemClock())
        message = "the server is of another version and does not know this request"
        with pytest.raises(NotApplied, match=message):
            service.call("notThereYet", b"data", [b"d"])
        service.close()


def test_recovery_learns_the_servers_transaction_table() -> None:
    """And its protocol, in one request."""
    hosted_store = LocalStore(MemoryStore(), SystemClock())
    hosted = Transactional(hosted_store, transactions="orders_txn", protocol="fenced")
    with (
        Server([(listen("127.0.0.1", 0), hosted.service)]) as server,
        connect(f"txn://127.0.0.1:{server.ports[0]}") as engine,
    ):
        assert engine.context.table == b"orders_txn"
        assert engine.context.rules.name == "fenced"
