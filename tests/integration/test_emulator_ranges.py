"""Ranges through a server: scans, snapshots, and blocks that no phantom passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from tests.integration.serving import hosting, plain, served_here
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
from txn.clock import ManualClock, SystemClock
from txn.model import MAX_ROW, Row
from txn.protocol.statuses import ProtocolName
from txn.service import server as transactional
from txn.service.messages import IDL
from txn.service.server import PAGE_ROWS, Transactional
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore


def key(row: str | bytes, column: str = "v") -> Key:
    return Key(row, "d", column, "data")


def put(*rows: str | bytes) -> list[Mutation]:
    return [Mutation(key(row), b"1") for row in rows]


def names(rows: Any) -> list[bytes]:
    return [row.row for row in rows]


@pytest.fixture(params=get_args(ProtocolName))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    """An engine behind a server, and one on the server's own store."""
    with served_here(protocol=request.param) as here:
        yield here.engine, Engine(here.store, table="data")


ASKED: list[dict[str, Any]] = [
    *({}, {"start": "b"}, {"stop": "b"}, {"prefix": "b"}, {"start": "x"}),
    {"columns": [("d", "w")]},
]


def test_a_scan_gives_what_it_gives_without_a_server(pair: tuple[Engine, Engine]) -> None:
    """Rows, cells, and what is absent; and each says so when its time is over."""
    remote, local = pair
    rows = [b"a", b"b", b"bb", b"b\xff", b"c", b"\xff" * 3]
    remote.commit([Mutation(key(row, name), b"1") for row in rows for name in ("v", "w")])
    remote.commit([Delete(key("bb")), Delete(key("c")), Delete(key("c", "w"))])
    for snapshot in (False, True):
        for asked in ASKED:
            found = list(remote.scan(snapshot=snapshot, **asked))
            assert found == list(local.scan(snapshot=snapshot, **asked))
            assert all(row.cells for row in found)
        for engine in pair:
            with pytest.raises(DeadlineError):
                list(engine.scan(deadline_ms=0, snapshot=snapshot))
            assert names(engine.scan(deadline_ms=60_000, stop="b", snapshot=snapshot)) == [b"a"]
    for engine in pair:
        with pytest.raises(DeadlineError):
            engine.read([key("a")], deadline_ms=0)
        assert engine.read([key("a")], deadline_ms=60_000)[key("a")]


def test_a_scan_goes_from_page_to_page(
    pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row once, in order, also behind the longest row key that there is; a page may end for
    its rows or for its bytes. A snapshot that is too large for an answer is refused."""
    remote, _ = pair
    rows = sorted([b"k" * MAX_ROW, b"l", *(b"%05d" % n for n in range(2 * PAGE_ROWS + 1))])
    for start in range(0, len(rows), 500):
        remote.commit(put(*rows[start : start + 500]))
    assert names(remote.scan()) == rows
    monkeypatch.setattr(transactional, "PAGE_BYTES", 1)
    assert names(remote.scan(start="00990")) == [row for row in rows if row >= b"00990"]
    monkeypatch.setattr(transactional, "VIEW_BYTES", 1_000)
    with pytest.raises(InvalidRequestError, match="too many bytes for a snapshot limit=1000"):
        remote.scan(snapshot=True)


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
    rows = [f"{number:02}" for number in range(20)]
    hosted._engine.commit(put(*rows))
    hosted._engine.commit([Delete(key(row)) for row in rows])
    page = hosted.scan(IDL.Span(b"data", b""), None)
    assert page.rows == []
    assert b"00" < page.following < b"19\0"


@pytest.mark.parametrize("way", ["commit", "read only"])
def test_a_phantom_is_a_conflict_through_a_server(pair: tuple[Engine, Engine], way: str) -> None:
    """The scanned range is looked at again by the server, under the locks."""
    remote, local = pair
    remote.commit(put("a"))
    with pytest.raises(ConflictError), remote.transaction() as t:
        assert names(t.scan(prefix="a")) == [b"a"]
        t.get(key("z"))
        local.commit(put("ab"))
        if way == "commit":
            t.put(key("sum"), b"1")
    assert local.read([key("sum")]) == {key("sum"): None}


def test_a_block_that_scans_sees_its_own_writes_and_is_run_again(
    pair: tuple[Engine, Engine],
) -> None:
    remote, local = pair
    remote.commit(put("a1"))
    tries: list[int] = []

    def count(t: Any) -> None:
        rows = t.scan(prefix="a")
        if not tries:
            local.commit(put("a2"))
        tries.append(len(rows))
        t.put(key("sum"), str(len(rows)))
        assert names(t.scan(start="b")) == [b"sum"]

    remote.run(count)
    assert tries == [1, 2]
    (cell,) = local.read([key("sum")]).values()
    assert cell is not None and cell.value == b"2"


def test_a_range_that_cannot_be_read_is_an_invalid_request(pair: tuple[Engine, Engine]) -> None:
    for engine in pair:
        for snapshot in (False, True):
            with pytest.raises(InvalidRequestError, match="no such table"):
                engine.scan("absent", snapshot=snapshot)
            with pytest.raises(InvalidRequestError, match="no such family"):
                engine.scan("data", snapshot=snapshot, columns=[("q", "v")])


def test_any_client_commits_with_scanned_ranges() -> None:
    free = IDL.Span(b"data", b"a", b"b")
    one, two = (IDL.Mutation(IDL.Key(row, b"d", b"v", b"data"), b"1") for row in (b"a1", b"a2"))
    with served_here() as here, plain(here.port) as c:
        c.commit([one], [], IDL.Options(scanned=[free]))
        assert names(c.scan(free).rows) == [b"a1"]
        with pytest.raises(IDL.AssertionFailed):
            c.commit([two], [], IDL.Options(scanned=[free]))
        family = IDL.Span(b"data", b"", None, [IDL.Column(b"q", b"")])
        for bad in (IDL.Span(b"absent", b""), family):
            with pytest.raises(IDL.Invalid):
                c.commit([two], [], IDL.Options(scanned=[bad]))
            with pytest.raises(IDL.Invalid):
                c.scan(bad)
        with pytest.raises(IDL.Invalid):
            c.commitMany([IDL.Request([two])], IDL.Options(scanned=[free]))
        (found,) = c.view([], [free]).spans
        assert [each.cell.value for each in found] == [b"1"]


def test_recovery_learns_the_servers_transaction_table_and_protocol() -> None:
    store = LocalStore(MemoryStore(), SystemClock())
    hosted = Transactional(store, transactions="orders_txn", protocol="fenced")
    with hosting(hosted) as port, connect(f"txn://127.0.0.1:{port}") as engine:
        assert engine.context.table == b"orders_txn"
        assert engine.context.rules.name == "fenced"
