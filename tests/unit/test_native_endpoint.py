"""Many rows of a region in one request: what servers may answer, and what then was done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.unit import fake_region_server as fake
from tests.unit.fake_region_server import HONOURS, IGNORES, LIES, TABLE, Break, Refuse
from tests.unit.fake_region_server import FakeRegionServer as Server
from txn.clock import ManualClock, poll
from txn.errors import MaybeApplied, NotApplied, TableUnavailable
from txn.model import Check, Edit, Key
from txn.stores import open_store
from txn.stores.hbase.native.connection import IDLE_MS
from txn.stores.hbase.native.endpoint import ABSENT_MS, REST_MS
from txn.stores.hbase.native.items import ASYNC_WAL
from txn.stores.hbase.native.store import NativeStore as Store

OUTSIDE = "DoNotRetryIOException: Requested row out of range 'c'"


@pytest.fixture
def server() -> Iterator[Server]:
    with fake.fake_region_server() as server:
        server.endpoints[TABLE] = HONOURS
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: Server, clock: ManualClock) -> Iterator[Store]:
    """A store that has proven the server, and whose clock does not move by itself."""
    with closing(open_store(f"{server.uri}&timeout_ms=2000", clock)) as store:
        assert isinstance(store, Store)
        assert store.put_if_all([[expect("w")]]) == [True]
        del server.methods[:], server.together[:]
        yield store


def put(rows: str, old: bytes = b"", new: bytes = b"1", table: bytes = TABLE) -> list[Check]:
    """Return a check of each row, whose cell becomes `new`."""
    keys = [Key(row, "d", "x", table) for row in rows]
    return [Check(key, old, edits=(Edit(key, new, 5),)) for key in keys]


def expect(row: str, value: bytes = b"") -> Check:
    return put(row, value)[0]._replace(edits=())


def values(server: Server) -> dict[str, bytes]:
    return {row.decode(): each for (row, _, column), each in server.cells.items() if column == b"x"}


def list_rows(server: Server) -> list[str]:
    """Return the rows with conditions of each request of many rows."""
    return ["".join(each.row.decode() for each in asked.condition) for asked in server.together]


def refuse(server: Server, error: Exception) -> None:
    def before(number: int, method: str) -> None:
        if method == "ExecService":
            raise error

    server.before = before


def test_checks_share_a_request_until_it_is_refused(
    server: Server, store: Store, clock: ManualClock
) -> None:
    """Then they are carried out one by one, and the region rests: the next refusal is likely."""
    assert store.check_and_put(put("abc")) == [True] * 3
    assert store.check_and_put(put("cde")) == [False, True, True]
    assert store.check_and_put(put("fgh")) == [True] * 3
    assert store.put_if_all([put("i"), put("j")]) == [True] * 2
    assert server.methods == [*["ExecService"] * 2, *["Multi"] * 2, *["ExecService"] * 2]
    clock.advance(REST_MS)
    assert store.check_and_put(put("klm")) == [True] * 3
    assert list_rows(server)[-1] == "klm"
    assert values(server) == dict.fromkeys("abcdefghijklm", b"1")


@pytest.mark.parametrize("kind", [IGNORES, LIES])
def test_a_server_that_ignores_conditions_is_never_relied_on(
    server: Server, store: Store, clock: ManualClock, kind: str
) -> None:
    """HBase 2.4.0 applied the changes whatever the cells were. Each connection asks once: an older
    server may have started at the same address."""
    server.cells[b"b", b"d", b"x"] = b"other"
    assert store.put_if_all([put("ac")]) == [True]
    server.endpoints[TABLE] = kind
    server.cut()
    assert poll(lambda: all(each._wire.is_readable() for each in store._servers._made), 60_000)
    clock.advance(IDLE_MS)
    for old, new in ((b"1", b"2"), (b"2", b"3")):
        assert store.put_if_all([put("ab", old)]) == [None]
        assert store.check_and_put(put("abc", old, new)) == [True, False, True]
    assert values(server) == {"a": b"3", "b": b"other", "c": b"3"}
    assert server.count("ExecService") == 2


@pytest.mark.parametrize("name", ["UnknownProtocol", "AccessDenied", "ErrorOfSomeCoprocessor"])
def test_a_table_whose_endpoint_cannot_be_used_is_asked_once_a_minute(
    server: Server, clock: ManualClock, name: str
) -> None:
    """The ordinary way follows at once; no region is asked after the first."""
    server.starts = [b"", b"d", b"g"]
    refuse(server, Refuse(f"!{name}Exception"))
    with closing(open_store(server.uri, clock)) as store:
        for count in (1, 1, 2):
            assert store.check_and_put(put("abcdefghi"))
            assert store.put_if_all([put("ab"), put("a", b"", b"2")]) == [None, False]
            assert server.count("ExecService") == count
            clock.advance(ABSENT_MS // 2)
    assert values(server) == dict.fromkeys("abcdefghi", b"1")


def test_tables_with_and_without_it_share_a_batch(server: Server, store: Store) -> None:
    checks = [*put("abc"), *put("def", table=b"u")]
    assert store.check_and_put(checks) == [True] * 6
    assert (list_rows(server), server.sizes) == (["abc"], [3])
    assert store.put_if_all([put("g"), put("gh", table=b"u"), checks[2:4]]) == [True, None, None]


@pytest.mark.parametrize(
    "refusal", ["NotServingRegionException", "RegionTooBusyException", OUTSIDE]
)
def test_a_region_that_cannot_do_it_has_done_nothing(
    server: Server, store: Store, refusal: str
) -> None:
    """The ordinary way follows. The last is of a region that was split."""
    server.refused[b"c"] = [refusal]
    assert store.check_and_put(put("abc")) == [True] * 3
    assert (server.methods[0], server.sizes) == ("ExecService", [3])
    assert ("Scan" in server.methods) is ("Busy" not in refusal)
    server.refused[b"c"] = [refusal]
    assert store.put_if_all([put("cd", b"1", b"2")]) == [None]
    assert values(server) == dict.fromkeys("abc", b"1")


@pytest.mark.parametrize(
    "answer",
    [
        *(b"\xff\xff", b"", Break(), Refuse("DoNotRetryIOException")),
        *(Refuse("WALSyncTimeoutIOException"), Refuse(f"IOException: Caused by: {OUTSIDE}")),
    ],
)
def test_another_answer_leaves_open_what_was_done(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """They were changed: one by one, the checks would be refused. An error may be one of another
    coprocessor, after the change."""
    monkeypatch.setattr(Store, "_find_absent", lambda *_: None)  # this master knows no table
    if isinstance(answer, Exception):
        refuse(server, answer)
    else:
        server.said = answer
    with pytest.raises(MaybeApplied) as caught:
        store.check_and_put(put("abc"))
    assert (type(caught.value) is TableUnavailable) is str(answer).startswith("DoNot")
    assert server.methods == ["ExecService"]


def test_what_is_done_beside_is_not_denied(server: Server, clock: ManualClock) -> None:
    """A row was put without a condition. The others could not be sent, and are then refused one by
    one until the end."""
    server.endpoints.clear()
    server.refused = {row: ["*RegionTooBusyException"] for row in (b"a", b"b", b"c")}
    free = put("z")[0]._replace(expected=None)
    with closing(open_store(f"{server.uri}&timeout_ms=2000", clock)) as store:
        with pytest.raises(MaybeApplied, match="could not do it in time"):
            store.check_and_put([*put("abc"), free])
        with pytest.raises(NotApplied):
            store.check_and_put(put("abc"))
    assert values(server) == {"z": b"1"}


def test_a_store_that_is_closed_meanwhile_may_have_done_it(server: Server, store: Store) -> None:
    """The error of a closed store says that the call had no effect."""
    server.before = lambda number, method: store.close()
    with pytest.raises(MaybeApplied, match="closed"):
        store.check_and_put(put("abc"))
    assert poll(lambda: bool(values(server)), 60_000)


def test_what_one_request_cannot_keep_in_order_is_done_one_by_one(
    server: Server, store: Store
) -> None:
    """Checks of one row, and puts at the server's time over another value: it may be below that."""
    twice = [*put("a"), *put("a", b"1", b"2"), *put("bcd")]
    assert store.check_and_put(twice) == [True] * 5
    assert (list_rows(server), server.sizes) == (["bcd"], [2])
    keys = [check.key for check in put("bcd")]
    assert store.check_and_put([Check(key, b"1", ((key, b""),)) for key in keys]) == [True] * 3
    assert server.count("ExecService") == 1
    for column in (b"x", b"y"):  # over an empty value, and beside the checked cell
        puts = [Check(key, b"", ((key._replace(column=column), b"2"),)) for key in keys]
        assert store.check_and_put(puts) == [column == b"x"] * 3
    assert server.count("ExecService") == 3


def test_many_rows_take_several_requests(server: Server, store: Store) -> None:
    """Each is the work of one thread of the server, and is held in its memory."""
    rows, large = "".join(map(chr, range(1_000, 1_200))), bytes(3_000_000)
    assert store.check_and_put(put(rows)) == [True] * 200
    assert [len(rows) for rows in list_rows(server)] == [64, 64, 64, 8]
    assert store.check_and_put(put("abcdef", new=large)) == [True] * 6
    assert server.count("ExecService") == 4, "two fit into a request, which are too few"
    assert store.put_if_all([put("gh", new=large), put("ijk", new=large)]) == [True, None]


def test_a_wait_for_the_log_covers_checks_that_are_deferred(server: Server, store: Store) -> None:
    deferred = [check._replace(is_deferred=True) for check in put("abcd")]
    assert store.check_and_put(deferred[:3]) == [True] * 3
    assert store.check_and_put([deferred[3], *put("ef")]) == [True] * 3
    durabilities = [{one.durability for one in each.mutation_request} for each in server.together]
    assert durabilities == [{ASYNC_WAL}, {0}]


WIDE = "".join(map(chr, range(33, 110))) * 7


@pytest.mark.parametrize(
    ("groups", "answers", "requests"),
    [
        ([put("ab"), put("c")], [True, True], ["abc"]),
        ([put("ab"), put("c!"), put("d")], [True, False, True], ["abc!d", "ab", "c!", "d"]),
        ([put("a!")], [False], ["a!"]),
        ([put("ab"), put("b!")], [True, False], ["ab", "b!"]),  # both change b
        ([[expect("!", b"0"), *put(row)] for row in "ab"], [True, True], ["!ab"]),
        ([[expect("a"), expect("!", b"0")]], [True], ["a!"]),  # without a change
        ([[expect("a"), expect("!")]], [False], ["a!"]),
        ([put("an"), put("b")], [None, True], ["b"]),  # two regions
        ([put("bn"), put("n")], [None, True], ["n"]),
        ([put(WIDE[:501]), put("a")], [None, True], ["a"]),
        ([put("a", new=bytes(9_000_000))], [True], []),
        ([[], put("a")], [None, True], ["a"]),
        ([], [], []),
    ],
)
def test_groups_take_effect_whole_or_not(
    server: Server, store: Store, groups: Any, answers: list[Any], requests: list[str]
) -> None:
    server.starts, server.cells[b"!", b"d", b"x"] = [b"", b"n"], b"0"
    store._regions.forget_server(("127.0.0.1", server.port))
    assert store.put_if_all(groups) == answers
    assert sorted(list_rows(server)) == sorted(requests)
    done = [group for group, answer in zip(groups, answers, strict=True) if answer]
    edits = [edit for group in done for check in group for edit in check.edits]
    assert values(server) == {"!": b"0"} | {edit.key.row.decode(): edit.value for edit in edits}
