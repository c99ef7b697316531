"""Many rows of a region in one request: what servers may answer, and what then was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from tests.unit.fake_region_server import (
    HONOURS,
    IGNORES,
    LIES,
    TABLE,
    Break,
    FakeRegionServer,
    Refuse,
    Say,
    fake_region_server,
)
from txn.clock import ManualClock, poll
from txn.errors import MaybeApplied, NotApplied, StoreError, TableUnavailable
from txn.model import Check, Edit, Key
from txn.stores import open_store
from txn.stores.hbase.native.connection import IDLE_MS
from txn.stores.hbase.native.items import ASYNC_WAL
from txn.stores.hbase.native.messages import PB
from txn.stores.hbase.native.servers import Servers
from txn.stores.hbase.native.store import NativeStore
from txn.stores.hbase.native.together import ABSENT_MS, REST_MS

OUTSIDE = "DoNotRetryIOException: Requested row out of range 'c'"


@pytest.fixture
def server() -> Iterator[FakeRegionServer]:
    """A server whose table has an endpoint that honours conditions."""
    with fake_region_server() as server:
        server.endpoints[TABLE] = HONOURS
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: FakeRegionServer, clock: ManualClock) -> Iterator[NativeStore]:
    """A store that has proven the server, and whose clock does not move by itself."""
    with closing(open_store(f"{server.uri}&timeout_ms=2000", clock)) as store:
        assert isinstance(store, NativeStore)
        assert store.put_if_all([[expect("warm", b"")]]) == [True]
        server.methods.clear()
        server.together.clear()
        yield store


def expect(row: str, value: bytes, new: bytes | None = None, table: bytes = TABLE) -> Check:
    """Return a check of x, which becomes `new`."""
    key = Key(row, "d", "x", table)
    return Check(key, value, edits=() if new is None else (Edit(key, new, 5),))


def put(rows: str, value: bytes = b"", new: bytes = b"1", table: bytes = TABLE) -> list[Check]:
    return [expect(row, value, new, table) for row in rows]


def values(server: FakeRegionServer) -> dict[str, bytes]:
    return {row.decode(): each for (row, _, column), each in server.cells.items() if column == b"x"}


def list_rows(server: FakeRegionServer) -> list[list[str]]:
    """Return the rows with conditions of each request of many rows."""
    return [[each.row.decode() for each in asked.condition] for asked in server.together]


def test_checks_of_a_region_share_a_request_until_it_refuses_one(
    server: FakeRegionServer, store: NativeStore, clock: ManualClock
) -> None:
    """Then they are carried out one by one, and the region rests: the next refusal is likely."""
    assert store.check_and_put(put("abc")) == [True] * 3
    assert store.check_and_put(put("cde")) == [False, True, True]
    assert server.methods == ["ExecService", "ExecService", "Multi"]
    assert store.check_and_put(put("fgh")) == [True] * 3
    assert store.put_if_all([put("i"), put("j")]) == [True] * 2
    assert server.methods[3:] == ["Multi", "ExecService", "ExecService"]
    clock.advance(REST_MS)
    assert store.check_and_put(put("klm")) == [True] * 3
    assert list_rows(server)[-1] == ["k", "l", "m"]
    assert values(server) == dict.fromkeys("abcdefghijklm", b"1")
    assert store.check_and_put(put("no")) == [True] * 2
    assert server.methods[6:] == ["ExecService", "Multi"], "too few to share one"


@pytest.mark.parametrize("kind", [IGNORES, LIES])
@pytest.mark.parametrize("connections", [1, 2])
def test_a_server_that_ignores_conditions_is_never_relied_on(
    server: FakeRegionServer, clock: ManualClock, kind: str, connections: int
) -> None:
    """HBase 2.4.0 applied the changes whatever the cells were. One question to each connection, and
    that changes nothing that anybody can see."""
    server.endpoints[TABLE] = kind
    server.cells[b"b", b"d", b"x"] = b"other"
    with closing(open_store(f"{server.uri}&connections={connections}", clock)) as store:
        assert store.put_if_all([put("ab")]) == [None]
        assert store.check_and_put(put("abc")) == [True, False, True]
        for _ in range(connections):
            assert store.check_and_put(put("abcde", b"1", b"2"))[:3] == [_ == 0, False, _ == 0]
    assert values(server) == {"a": b"2", "b": b"other", "c": b"2"}
    assert server.count("ExecService") == connections


def test_a_new_connection_is_proven_again(
    server: FakeRegionServer, store: NativeStore, clock: ManualClock
) -> None:
    """An older server may have started at the same address."""
    server.cells[b"b", b"d", b"x"] = b"other"
    server.endpoints[TABLE] = IGNORES
    connection = next(each for at, each in store._servers._open.items() if at[1][0] == "C")
    server.cut()
    assert poll(connection._wire.is_readable, 60_000)
    clock.advance(IDLE_MS)
    assert store.check_and_put(put("abc")) == [True, False, True]
    assert values(server) == {"a": b"1", "b": b"other", "c": b"1"}


@pytest.mark.parametrize("error", ["", "security.AccessDeniedException", "ErrorOfSomeCoprocessor"])
def test_a_table_without_it_is_asked_once_a_minute(
    server: FakeRegionServer, clock: ManualClock, error: str
) -> None:
    """Or one whose user may not use it, or that does not work. The ordinary way follows at once; no
    region is asked after the first."""
    server.starts = [b"", b"d", b"g"]
    if error:

        def before(number: int, method: str) -> None:
            if method == "ExecService":
                raise Refuse(f"!{error}")

        server.before = before
    else:
        server.endpoints.clear()
    with closing(open_store(server.uri, clock)) as store:
        for count in (1, 1, 2):
            assert store.check_and_put(put("abcdefghi"))
            assert store.put_if_all([put("ab"), put("a", b"", b"2")]) == [None, False]
            assert server.count("ExecService") == count
            clock.advance(ABSENT_MS // 2)
    assert values(server) == dict.fromkeys("abcdefghi", b"1")


def test_tables_with_and_without_it_share_a_batch(
    server: FakeRegionServer, store: NativeStore
) -> None:
    checks = [*put("abc"), *put("def", table=b"u")]
    assert store.check_and_put(checks) == [True] * 6
    assert list_rows(server) == [["a", "b", "c"]]
    assert server.sizes == [3]
    assert store.put_if_all([put("gh"), put("gh", table=b"u"), [checks[0], checks[3]]]) == [
        *(True, None, None)
    ]


@pytest.mark.parametrize(
    ("refusal", "looks_up"),
    [
        ("NotServingRegionException", True),
        ("RegionTooBusyException", False),
        (OUTSIDE, True),  # of a region that was split
    ],
)
def test_a_region_that_cannot_do_it_has_done_nothing(
    server: FakeRegionServer, store: NativeStore, refusal: str, looks_up: bool
) -> None:
    """The ordinary way follows."""
    server.refused[b"c"] = [refusal]
    assert store.check_and_put(put("abc")) == [True] * 3
    assert server.methods[0] == "ExecService"
    assert server.sizes == [3]
    assert ("Scan" in server.methods) is looks_up
    server.refused[b"c"] = [refusal]
    assert store.put_if_all([put("cd", b"1", b"2")]) == [None]
    assert values(server) == dict.fromkeys("abc", b"1")


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        ("WALSyncTimeoutIOException", MaybeApplied),
        ("IOException: Caused by: DoNotRetryIOException: Requested row out of range", MaybeApplied),
        ("DoNotRetryIOException", TableUnavailable),
    ],
)
def test_another_refusal_leaves_open_what_was_done(
    server: FakeRegionServer,
    store: NativeStore,
    monkeypatch: pytest.MonkeyPatch,
    refusal: str,
    kind: type[StoreError],
) -> None:
    """Such as the one of another coprocessor, after the rows were changed."""
    monkeypatch.setattr(NativeStore, "_find_absent", lambda *_: None)  # this master knows no table
    for call in (lambda: store.check_and_put(put("abc")), lambda: store.put_if_all([put("abc")])):
        server.refused[b"c"] = [refusal]
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
    assert server.count("Multi") == 0


def say(value: bytes) -> Any:
    """Return an answer with another message inside."""
    region = {"type": 1, "value": b""}
    return PB.CoprocessorServiceResponse(region=region, value={"name": "", "value": value})


@pytest.mark.parametrize("call", ["check_and_put", "put_if_all"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Break(), id="lost"),
        pytest.param(Say(b"\x00\x00\x00\x04\x02\x08\x01\x7f"), id="wrong lengths"),
        pytest.param(say(b"\xff\xff"), id="no message inside"),
        pytest.param(say(b""), id="without processed"),
        pytest.param(say(b"\x0a\x01\x01"), id="processed of another type"),
        pytest.param(PB.GetResponse(), id="another message"),
    ],
)
def test_an_answer_that_says_nothing_leaves_open_what_was_done(
    server: FakeRegionServer,
    store: NativeStore,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    call: str,
) -> None:
    """They were changed; one by one, the checks would find it and be refused."""
    apply = server.ExecService

    def change(body: bytes, block: bytearray) -> Any:
        said = apply(body, block)
        return said if isinstance(answer, Exception) else answer

    def before(number: int, method: str) -> None:
        if method == "ExecService" and isinstance(answer, Exception):
            raise answer

    monkeypatch.setattr(server, "ExecService", change)
    server.before = before
    with pytest.raises(MaybeApplied, match="no answer from the server"):
        getattr(store, call)(put("abc") if call == "check_and_put" else [put("abc")])
    assert server.methods == ["ExecService"]


def test_a_lost_proof_has_done_nothing(server: FakeRegionServer, clock: ManualClock) -> None:
    def before(number: int, method: str) -> None:
        if (number, method) == (1, "ExecService"):
            raise Break

    server.before = before
    with closing(open_store(server.uri, clock)) as store:
        assert store.check_and_put(put("abc")) == [True] * 3
        assert server.count("Multi") == 1
        assert store.check_and_put(put("abc", b"1", b"2")) == [True] * 3
        assert (server.count("Multi"), server.count("ExecService")) == (1, 3)


def test_what_is_done_beside_is_not_denied(server: FakeRegionServer, clock: ManualClock) -> None:
    """A row was put without a condition. The others could not be sent, and are then refused one by
    one until the end."""
    server.endpoints.clear()
    server.refused = {row: ["*RegionTooBusyException"] for row in (b"a", b"b", b"c")}
    free = expect("z", b"", b"1")._replace(expected=None)
    with closing(open_store(f"{server.uri}&timeout_ms=2000", clock)) as store:
        with pytest.raises(MaybeApplied, match="could not do it in time"):
            store.check_and_put([*put("abc"), free])
        with pytest.raises(NotApplied):
            store.check_and_put(put("abc"))
    assert values(server) == {"z": b"1"}


def test_a_server_that_cannot_be_reached_is_tried_once(
    server: FakeRegionServer, store: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try may last until the deadline."""
    with fake_region_server() as other:
        server.starts, server.ports = [b"", b"d", b"g"], {b"d": other.port, b"g": other.port}
        store._regions.forget_server(("127.0.0.1", server.port))
        store.read([Key(row, "d", "x", TABLE) for row in "adg"])
        for each in store._servers._open.values():
            if each.address[1] == other.port:
                each.end()
    server.ports = {}  # they have moved
    tried: list[object] = []
    find = Servers.find_connection

    def find_connection(self: Servers, address: Any, *rest: Any) -> Any:
        tried.append(address[1])
        return find(self, address, *rest)

    monkeypatch.setattr(Servers, "find_connection", find_connection)
    assert store.check_and_put(put("abcdefghi")) == [True] * 9
    assert tried.count(other.port) == 1
    assert values(server) == dict.fromkeys("abcdefghi", b"1")


def test_what_one_request_cannot_keep_in_order_is_carried_out_one_by_one(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """Checks of one row, and puts at the server's time over another value: it may be below that."""
    twice = [*put("a"), *put("a", b"1", b"2"), *put("bcd")]
    assert store.check_and_put(twice) == [True] * 5
    assert (list_rows(server), server.sizes) == ([["b", "c", "d"]], [2])
    keys = [check.key for check in put("bcd")]
    timeless = [Check(key, b"1", ((key, b"2"),)) for key in keys]
    assert store.check_and_put(timeless) == [True] * 3
    assert server.count("ExecService") == 1
    others = [Check(key, b"2", ((key._replace(column=b"y"), b"3"),)) for key in keys]
    assert store.check_and_put(others) == [True] * 3
    assert store.check_and_put([Check(key, b"", ((key, b"1"),)) for key in keys]) == [False] * 3
    assert server.count("ExecService") == 3


def test_many_rows_take_several_requests(server: FakeRegionServer, store: NativeStore) -> None:
    """Each is the work of one thread of the server, and is held in its memory."""
    checks = [expect(f"{number:03}", b"", b"1") for number in range(200)]
    assert store.check_and_put(checks) == [True] * 200
    assert [len(rows) for rows in list_rows(server)] == [64, 64, 64, 8]
    large = bytes(3_000_000)
    assert store.check_and_put(put("abcdef", new=large)) == [True] * 6
    assert sum(len(rows) for rows in list_rows(server)) == 200, "two fit into a request"
    assert store.put_if_all([put("gh", new=large), put("ijk", new=large)]) == [True, None]


def test_a_wait_for_the_log_covers_checks_that_are_deferred(
    server: FakeRegionServer, store: NativeStore
) -> None:
    deferred = [check._replace(is_deferred=True) for check in put("abcd")]
    assert store.check_and_put(deferred[:3]) == [True] * 3
    assert store.check_and_put([deferred[3], *put("ef")]) == [True] * 3
    durabilities = [{one.durability for one in each.mutation_request} for each in server.together]
    assert durabilities == [{ASYNC_WAL}, {0}]


WIDE = "".join(map(chr, range(1_000, 1_501)))
Groups = Sequence[Sequence[Check]]


@pytest.mark.parametrize(
    ("groups", "answers", "requests"),
    [
        pytest.param([put("ab"), put("c")], [True, True], ["abc"], id="merged"),
        pytest.param(
            [put("ab"), put("c!"), put("d")],
            [True, False, True],
            ["abc!d", "ab", "c!", "d"],
            id="each alone after a refusal",
        ),
        pytest.param([put("a!")], [False], ["a!"], id="alone and refused"),
        pytest.param([put("ab"), put("b!")], [True, False], ["ab", "b!"], id="a row"),
        pytest.param(
            [[expect("!", b"other"), *put(row)] for row in "ab"], [True, True], ["!ab"], id="shared"
        ),
        pytest.param([[expect("a", b""), expect("!", b"other")]], [True], ["a!"], id="no change"),
        pytest.param([[expect("a", b""), expect("!", b"")]], [False], ["a!"], id="nor a match"),
        pytest.param([put("an"), put("b")], [None, True], ["b"], id="two regions"),
        pytest.param([put("bn"), put("n")], [None, True], ["n"], id="the other first"),
        pytest.param([put(WIDE), put("a")], [None, True], ["a"], id="too many rows"),
        pytest.param([put(WIDE[:500])], [True], [WIDE[:500]], id="as many as can be"),
        pytest.param([put("a", new=bytes(9_000_000))], [True], [], id="too large for company"),
        pytest.param([[], put("a")], [None, True], ["a"], id="nothing"),
        pytest.param([], [], [], id="no groups"),
    ],
)
def test_groups_take_effect_whole_or_not(
    server: FakeRegionServer,
    store: NativeStore,
    groups: Groups,
    answers: list[bool | None],
    requests: list[str],
) -> None:
    server.starts = [b"", b"n", b"o"]
    store._regions.forget_server(("127.0.0.1", server.port))
    server.cells[b"!", b"d", b"x"] = b"other"
    assert store.put_if_all(groups) == answers
    assert sorted("".join(rows) for rows in list_rows(server)) == sorted(requests)
    done = {
        check.key.row.decode(): edit.value
        for group, answer in zip(groups, answers, strict=True)
        for check in group
        for edit in check.edits
        if answer
    }
    assert values(server) == {"!": b"other", **done}


def test_a_store_that_is_closed_meanwhile_may_have_done_it(
    server: FakeRegionServer, store: NativeStore
) -> None:
    """The error of a closed store says that the call had no effect."""

    def before(number: int, method: str) -> None:
        store.close()

    server.before = before
    with pytest.raises(MaybeApplied, match="closed"):
        store.check_and_put(put("abc"))
    assert poll(lambda: bool(values(server)), 60_000)
