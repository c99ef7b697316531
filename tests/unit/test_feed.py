"""The change feed: which transactions a part has, what is told of them, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recovery import fsck
from tests.simulation.calls import asks_for
from tests.simulation.puppets import Puppet
from tests.simulation.world import World as Stage
from tests.unit.worlds import TABLE, World, X, Y, Z
from txn import Delete, Key, Mutation, Some, connect
from txn.client.parts import PartsClient
from txn.errors import AssertionFailedError, CorruptRowError, InvalidRequestError
from txn.model import Edit, Family
from txn.protocol.row import column
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.reading import feed
from txn.reading.feed import (
    Bounds,
    ChangeFeed,
    ChangesLostError,
    Decided,
    KeyChange,
    Offset,
    decode_offset,
    read_changes,
)
from txn.stores.local import LocalStore
from txn.testing.faulty import Call, Fault, FaultyStore

BOUNDS = Bounds(delay_ms=5, lateness_ms=50_000)


def feed_of(world: World, bounds: Bounds = BOUNDS) -> ChangeFeed:
    store = FaultyStore(world.store)
    return ChangeFeed(replace(world.client(store).context, store=store), bounds)


def begin(world: World) -> Offset:
    return Offset(world.clock.wall_ms() - 1)


def read_part(reader: ChangeFeed, start: Offset, **how: int) -> tuple[Offset, list[bytes]]:
    """Return where the next part ends, and the row keys of its transactions."""
    end = reader.find_end(start, **how)
    assert decode_offset(end.encode()) == end
    return end, [decided.row_key for decided in reader.list_part(start, end)]


def commit(world: World, *mutations: Mutation | Delete, **how: Any) -> bytes:
    """Commit, and let time pass until it can be told."""
    done = world.engine.commit(mutations, **how)
    world.clock.advance(BOUNDS.delay_ms + 1)
    return done.transaction


def read_all(world: World, start: Offset, **how: Any) -> list[KeyChange]:
    reader = feed_of(world)
    part = reader.list_part(start, reader.find_end(start))
    return list(read_changes(reader.context, part, **how))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def start(world: World) -> Offset:
    return begin(world)


def test_a_change_has_the_key_both_versions_and_the_transaction(world: World) -> None:
    start = begin(world)
    first = commit(world, Mutation(X, b"1"), labels={"job": "a"})
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, b"1")], [Some(Z)])
    second = commit(world, Delete(X), Mutation(Y, b"2"))
    assert Status.ABORTED in world.statuses()
    one, two, three = read_all(world, start)
    assert (one.key, one.replaced, one.value, one.transaction) == (X, 0, b"1", first)
    assert one.labels == {"job": "a"}
    assert one.decided_ms <= one.timestamp
    assert (two.key, two.replaced, two.value, two.transaction) == (X, one.timestamp, None, second)
    assert (three.key, three.replaced, three.value) == (Y, 0, b"2")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_undecided_is_told_in_a_later_part(
    protocol: ProtocolName, rows_for_all: None
) -> None:
    world = Stage(protocol=protocol)
    keys = [Key(row, "d", "v", TABLE) for row in "ab"]
    held = Puppet(world, lambda engine: engine.commit([Mutation(keys[0], b"1")]))
    start = Offset(world.clock.wall_ms() - 1)
    held.until(asks_for(Status.ASSERTED))
    world.clock.advance(10_000)
    other = world.engine().commit([Mutation(keys[1], b"1")]).transaction
    world.clock.advance(10_000)
    reader = ChangeFeed(world.engine().context, BOUNDS)
    end, told = read_part(reader, start)
    assert told == [other]
    assert len(end.undecided) == 1
    done = held.finish().transaction
    world.clock.advance(10_000)
    assert read_part(reader, end)[1] == [done]
    assert read_part(ChangeFeed(reader.context, BOUNDS), end)[1] == [done]
    assert [each.row_key for each in reader.list_part(start, end)] == [other]


def test_a_decision_that_is_seen_late_is_told() -> None:
    """Its time may lie long before an offset, which names what it saw undecided."""
    world = Stage()
    keys = [Key(row, "d", "v", TABLE) for row in "ab"]
    held = Puppet(world, lambda engine: engine.commit([Mutation(keys[0], b"1")]))
    start = Offset(world.clock.wall_ms() - 1)
    held.until(asks_for(Status.ASSERTED))
    asked_ms = world.clock.wall_ms() + 1
    world.clock.advance(300_000)
    world.engine().commit([Mutation(keys[1], b"1")])
    world.clock.advance(300_000)
    reader = ChangeFeed(world.engine().context, BOUNDS)
    end, _ = read_part(reader, start)
    seen_ms = world.clock.wall_ms()
    world.clock.set_wall_ms(asked_ms)
    done = held.finish()
    world.clock.set_wall_ms(seen_ms + 10)
    later, told = read_part(reader, end)
    assert told == [done.transaction]
    assert reader.list_part(start, end) == [
        each for each in reader.list_part(start, later) if each.row_key not in told
    ]


def test_tokens_are_not_told_and_tables_can_be_chosen() -> None:
    world = World()
    world.put(column(b"txn", b"12345", b"status"), b"no row of a transaction")
    world.store.ensure_table(b"other", {b"d": Family()})
    start = begin(world)
    elsewhere = Key("x", "d", "x", "other")
    commit(world, Mutation(X, b"1"), Mutation(elsewhere, b"1"), once="token")
    assert [change.key for change in read_all(world, start)] == [X, elsewhere]
    assert [change.key for change in read_all(world, start, tables={b"other"})] == [elsewhere]


@pytest.mark.parametrize("salt_buckets", [1, 100])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_transaction_in_parts_is_told_as_one(protocol: ProtocolName, salt_buckets: int) -> None:
    """By the row that decides for its parts; while it is open nothing of it is told."""
    world = World(protocol=protocol, salt_buckets=salt_buckets)
    start = begin(world)
    client = PartsClient(world.client(seed=9))
    whole = client.begin(once="token", labels={"job": "a"})
    times = [
        client.write(whole, 0, n, [Mutation(Key(f"{n}", "d", "x", TABLE), b"1")]) for n in (0, 1)
    ]
    times.append(client.write(whole, 1, 0, [Mutation(X, b"1")]))
    other = commit(world, Mutation(Z, b"1"), labels={"job": "b"})
    reader = feed_of(world)
    end, told = read_part(reader, start)
    assert (told, end.undecided) == ([other], frozenset({whole}))
    done = client.commit(whole, [2, 1], max(times), ack="decided")
    world.clock.advance(10)
    for _ in range(2):  # before its parts have followed it, and afterwards
        part = reader.list_part(end, feed_of(world).find_end(end))
        assert [each.row_key for each in part] == [whole]
        found = list(read_changes(reader.context, part))
        assert [change.key.row for change in found] == [b"0", b"1", b"x"]
        assert {change.transaction for change in found} == {whole}
        assert {change.timestamp for change in found} == {done.timestamp}
        assert all(change.labels == {"job": "a"} for change in found)
        for finding in list(fsck.check(world.engine.context, grace_ms=0)):
            fsck.repair(world.engine.context, finding)
    assert world.value(X) == b"1"


@pytest.mark.parametrize("surveyed", [2, 10_000])
def test_parts_are_no_larger_than_wanted(surveyed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those of one millisecond, which nothing tells apart."""
    monkeypatch.setattr(feed, "SURVEYED", surveyed)
    world = World()
    start, rows = begin(world), [commit(world, Mutation(X, b"%d" % i)) for i in range(1, 26)]
    atomically = [world.engine.commit([Mutation(key, b"1")]).transaction for key in (X, Y, Z)]
    world.clock.advance(10)
    reader, parts, looks = feed_of(world), [], list[Call]()

    def see(call: Call) -> Fault:
        looks.extend([call] if call.method == "check_and_put" else [])  # comes before each look
        return Fault()

    reader.context.store.plan = see  # type: ignore[attr-defined]
    while (end := reader.find_end(start, most=2)) is not start:
        assert reader._survey is not None
        assert surveyed > 2 or len(reader._survey.decided) <= 12
        parts.append([each.row_key for each in reader.list_part(start, end)])
        start = end
    assert parts == [*(rows[i : i + 2] for i in range(0, 25, 2)), sorted(atomically)]
    assert surveyed == 2 or len(looks) == 2, "one for all parts, one to see that there is no more"


def test_without_news_the_offset_stays(world: World, start: Offset) -> None:
    """So that no empty batches are run; but not for so long that it would seem too old."""
    reader = feed_of(world)
    world.clock.advance(BOUNDS.idle_ms // 2)
    assert reader.find_end(start) is start
    world.clock.advance(BOUNDS.idle_ms)
    end = reader.find_end(start)
    assert end.until_ms > start.until_ms
    assert reader.list_part(start, end) == []
    commit(world, Mutation(X, b"1"))
    end = reader.find_end(start)
    world.clock.advance(-1_000)
    assert reader.find_end(end) is end
    assert reader.find_end(start, by_ms=start.until_ms - 1) is start


def test_an_offset_older_than_rows_are_kept_is_an_error(world: World) -> None:
    start = begin(world)
    commit(world, Mutation(X, b"1"))
    reader = feed_of(world)
    end = reader.find_end(start)
    world.clock.advance(BOUNDS.retention_ms)
    with pytest.raises(ChangesLostError, match="older than transaction rows are kept"):
        reader.find_end(start)
    with pytest.raises(ChangesLostError, match="older than transaction rows are kept"):
        reader.list_part(start, end)
    lenient = ChangeFeed(reader.context, BOUNDS, is_strict=False)
    assert len(lenient.list_part(start, end)) == 1


def test_the_earliest_offset_is_not_too_old_at_once(world: World) -> None:
    commit(world, Mutation(X, b"1"))
    world.clock.advance(60_000)
    reader = feed_of(world)
    start = reader.find_earliest()
    world.clock.advance(BOUNDS.margin_ms // 2)
    assert len(read_part(reader, start)[1]) == 1


def test_a_row_that_is_gone_is_an_error(world: World) -> None:
    start = begin(world)
    commit(world, Mutation(X, b"1"))
    reader = feed_of(world)
    part = reader.list_part(start, reader.find_end(start))
    for finding in list(fsck.check(world.engine.context, grace_ms=0, retention_ms=0)):
        fsck.repair(world.engine.context, finding)
    with pytest.raises(ChangesLostError, match="a row is gone"):
        list(read_changes(reader.context, part))
    assert list(read_changes(reader.context, part, is_strict=False)) == []


@pytest.mark.parametrize("name", [b"buffer", b"plan", b"another's plan"])
def test_a_row_that_does_not_decode_is_an_error(world: World, start: Offset, name: bytes) -> None:
    """Nobody can know what it has changed, or what was replaced: a person has to look."""
    done, other = commit(world, Mutation(X, b"1")), commit(world, Mutation(X, b"2"), Delete(Y))
    value = b"\1broken"
    if name == b"another's plan":
        value, name = world.value(column(b"txn", other, b"plan")) or b"", b"plan"
    world.store.write([Edit(column(b"txn", done, name), value, world.clock.wall_ms())])
    with pytest.raises(CorruptRowError, match=r"does not (match its checksum|fit the buffer)"):
        read_all(world, start)


def test_changes_of_one_millisecond_are_told_in_the_order_of_commits(world: World) -> None:
    start = begin(world)
    for number in range(1, 30):
        world.engine.commit([Mutation(X, b"%d" % number)])
    world.clock.advance(10)
    assert [change.value for change in read_all(world, start)] == [b"%d" % i for i in range(1, 30)]
    part = [Decided(number // 3, b"%d" % number) for number in range(10)]
    assert [len(some) for some in feed.split_part(part, 2)] == [3, 3, 3, 1]


def test_a_local_transaction_that_has_begun_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it becomes visible at once, with times from before: else it is skipped."""
    uri = f"embedded://{tmp_path}/store?sync=off"
    with ExitStack() as stack:
        engine = stack.enter_context(closing(connect(uri, table=TABLE)))
        engine.ensure_table(TABLE, ["d"])
        engine.commit([Mutation(Y, b"1")])
        reader = ChangeFeed(engine.context, Bounds(delay_ms=1))
        start = Offset(engine.context.clock.wall_ms() - 1_000)
        is_inside, may_end = threading.Event(), threading.Event()

        other = stack.enter_context(closing(connect(uri, table=TABLE)))
        begin = LocalStore.atomically

        def begin_slowly(store: LocalStore, work: Callable[[], None]) -> None:
            def work_slowly() -> None:
                work()
                if store is other.context.store:
                    is_inside.set()
                    assert may_end.wait(10)

            begin(store, work_slowly)

        monkeypatch.setattr(LocalStore, "atomically", begin_slowly)
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(other.commit, [Mutation(X, b"1")])
            assert is_inside.wait(10)
            engine.context.clock.sleep_ms(20)
            planning = pool.submit(reader.find_end, start)
            assert not wait([planning], 0.1).done
            may_end.set()
            writing.result(10)
            end = planning.result(10)
        told = len(reader.list_part(start, end))
        later = reader.find_end(end)
        assert (told, later is end) == (2, True)


@pytest.mark.parametrize("change", [{"format": 2}, {"until": "x"}, {"until": None}, {"low": None}])
def test_what_is_no_offset_is_refused(change: dict[str, object]) -> None:
    """A checkpoint of another source, or of a newer version."""
    for encoded in ({}, {**Offset(1, 1, frozenset()).encode(), **change}):
        with pytest.raises(InvalidRequestError, match="offset"):
            decode_offset(encoded)


def test_rows_are_kept_for_as_long_as_fsck_keeps_them() -> None:
    assert feed.RETENTION_MS == fsck.RETENTION_MS
