"""A commit in one local transaction: the same rows, or nothing, and then the steps one by one."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from tests.unit.test_tables_gone import BOTH, NEAR, Tables
from tests.unit.worlds import (
    LOST,
    POLICY,
    TABLE,
    World,
    X,
    Y,
    Z,
    before,
    list_stored,
    record_calls,
    stopped_at,
)
from txn import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    Committed,
    ConflictError,
    Delete,
    Engine,
    Exact,
    Key,
    MaybeApplied,
    Mutation,
    NotApplied,
    Policy,
    StoreError,
    connect,
)
from txn.clock import Clock, ManualClock, _find_boot
from txn.errors import StoreClosedError, TableUnavailable
from txn.model import Edit, Family
from txn.protocol import commit as commit_module
from txn.protocol import six_phase as six_phase_module
from txn.protocol.context import Context
from txn.protocol.statuses import Status
from txn.protocol.transaction import WRITTEN_WITHIN_MS
from txn.stores import open_store
from txn.stores.base import Store
from txn.tables.kv import lmdb as lmdb_module
from txn.tables.kv.lmdb import FIRST_MAP_SIZE, LmdbStore
from txn.tables.kv.ordered import Reader
from txn.testing.counting import CountingStore
from txn.testing.faulty import Call, Fault, Reply

NONE: frozenset[int] = frozenset()
Work = Callable[[Engine], object]


@pytest.fixture(params=["phases", "one write"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "phases":
        monkeypatch.setattr(commit_module, "commit_in_one_write", lambda *_: False)


in_phases = pytest.mark.parametrize("way", ["phases"], indirect=True)


def local_world() -> World:
    world = World()
    world.faults.features |= {"atomic"}
    return world


@pytest.fixture
def world() -> World:
    return local_world()


def is_local(call: Call) -> bool:
    return call.method == "atomically"


def methods(world: World, work: Callable[[], object]) -> list[str]:
    calls = record_calls(world)
    work()
    return [call.method for call in calls]


def left(world: World, status: Status, key: Key = X) -> bytes:
    """Let a client that goes step by step die at a status; return its row key."""
    features = world.faults.features
    world.faults.features = features - {"atomic"}
    holder = stopped_at(world, status, key)
    world.faults.features = features
    return holder


def in_a_block(engine: Engine) -> None:
    with engine.transaction() as t:
        assert len(list(t.scan(stop="y"))) == 1
        t.put(Y, b"2")


def decided(engine: Engine) -> None:
    engine.commit([Mutation(X, b"2")], ack="decided")
    engine.flush()


def refused(engine: Engine) -> None:
    with pytest.raises(AssertionFailedError):
        engine.commit([Mutation(Y, b"2")], [Exact(X, b"other")])


def in_a_batch(engine: Engine) -> None:
    results = engine.commit_many(
        [([Mutation(X, b"2")], []), ([Delete(Y)], [Exact(Y, b"no")]), ([Mutation(Z, b"2")], [])]
    )
    kinds = [type(result) for result in results]
    assert kinds == [Committed, AssertionFailedError, Committed]


WORKS: dict[str, Work] = {
    "put": lambda engine: engine.commit([Mutation(X, b"2"), Mutation(Z, b"2")]),
    "delete": lambda engine: engine.commit([Delete(X)], [Exact(X, b"1")]),
    "decided": decided,
    "once": lambda engine: [engine.commit([Mutation(X, b"2")], once="token") for _ in range(2)],
    "block": in_a_block,
    "refused": refused,
    "batch": in_a_batch,
    "many keys": lambda engine: engine.commit(
        [Mutation(Key(f"m{number}", "d", "x", TABLE), b"1") for number in range(501)]
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_both_brackets_leave_the_same_rows(name: str) -> None:
    found = []
    for world in (World(), local_world()):
        world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
        world.clock.advance(5)
        WORKS[name](world.engine)
        assert b"at.1-LOCKED" in {
            cell for key in list_stored(world.store) for cell in key.split(b"\0")
        }
        found.append(list_stored(world.store))
    assert found[0] == found[1]


def test_it_is_one_call_that_others_see_at_once(world: World) -> None:
    done = methods(world, lambda: world.engine.commit([Mutation(X, b"1")]))
    assert done == ["describe", "atomically"]  # the first asks for the family, once
    assert methods(world, lambda: world.engine.commit([Mutation(Y, b"1")])) == ["atomically"]
    assert methods(world, lambda: WORKS["batch"](world.engine)) == ["atomically"]


def note_durable(inner: Callable[..., Any], asked: list[bool]) -> Callable[..., Any]:
    def call(*given: Any, durable: bool = True, **more: Any) -> Any:
        asked.append(durable)
        return inner(*given, durable=durable, **more)

    return call


def test_the_decision_makes_it_durable_and_an_abort_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CountingStore(open_store("memory://", ManualClock()))
    asked: list[bool] = []
    for name in ("check_and_put", "write"):
        monkeypatch.setattr(store, name, note_durable(getattr(store, name), asked))
    store.ensure_table(TABLE, {b"d": Family()})
    engine = Engine(store, table=TABLE, clock=ManualClock())
    asked.clear()
    engine.commit([Mutation(X, b"1")])
    assert asked.count(True) == 1
    for once in (None, "token"):  # the token of a refused request is not confirmed: it is not there
        asked.clear()
        with pytest.raises(AssertionFailedError):
            engine.commit([Mutation(Y, b"1")], [Exact(X, b"-")], once=once)
        assert asked and True not in asked


def test_a_lock_that_is_met_undoes_it_and_the_steps_follow_one_by_one(world: World) -> None:
    holder = left(world, Status.LOCKED)
    calls = methods(world, lambda: world.engine.commit([Mutation(X, b"3"), Mutation(Y, b"3")]))
    assert calls[1:3] == ["atomically", "check_and_put"]  # the first asks for the family
    assert world.clock.monotonic_ms() >= POLICY.lock_ttl_ms
    assert (world.value(X), world.value(Y)) == (b"3", b"3")
    assert world.engine.outcome(holder).value == "aborted"
    assert not world.holder(X)


def test_a_lock_in_a_scanned_range_is_met_as_well(world: World) -> None:
    with pytest.raises(ConflictError, match="scanned range"), world.engine.transaction() as t:
        assert not list(t.scan(stop="y"))
        left(world, Status.LOCKED)
        t.put(Y, b"2")
    assert world.value(Y) is None
    assert not world.holder(Y)


def test_a_clock_is_not_waited_for_in_it(world: World) -> None:
    world.store.write(
        [Edit(X, b"1", world.clock.wall_ms() + POLICY.skew_ms // 2 + 10)],
    )
    calls = methods(world, lambda: world.engine.commit([Mutation(X, b"2")]))
    assert calls[1:3] == ["atomically", "check_and_put"]
    assert world.clock.monotonic_ms() >= 2


@in_phases
@pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
def test_nobody_waits_in_a_local_transaction(
    world: World, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.engine.commit([Mutation(X, b"1")])
    kept_out: list[bool] = []

    def assert_slowly(context: Context, transactions: Sequence[Any]) -> list[Any]:
        context.clock.sleep_ms(10)
        other = threading.Thread(target=world.put, args=(Z, b"other"), daemon=True)
        other.start()
        other.join(60 if rule else 0.3)
        kept_out.append(other.is_alive())
        return inner(context, transactions)

    inner = six_phase_module.assert_under_locks
    monkeypatch.setattr(six_phase_module, "assert_under_locks", assert_slowly)
    if not rule:
        monkeypatch.setattr(commit_module, "_SleeplessClock", lambda clock: clock)
    assert world.engine.commit([Mutation(Y, b"1")]).complete
    assert kept_out == [not rule]
    assert len(world.rows()) == 2


def test_a_lost_end_is_found_out(world: World) -> None:
    world.engine.commit([Mutation(X, b"1")])
    for applied, complete in ((None, True), (NONE, False)):
        before(world, is_local, fault=Fault(applied=applied, reply=Reply.MAYBE_APPLIED))
        results = world.engine.commit_many(
            [([Mutation(X, b"2")], []), ([Mutation(Y, b"2")], [Exact(Z, b"no")])]
        )
        assert isinstance(results[1], AssertionFailedError if complete else NotApplied)
        assert isinstance(results[0], Committed if complete else NotApplied)
        assert (world.value(X) == b"2") is complete
        if not complete:
            assert isinstance(results[0], NotApplied)
            assert isinstance(results[0].__cause__, MaybeApplied)
        world.engine.commit([Mutation(X, b"1")])


def test_a_lost_end_that_cannot_be_found_out_is_unknown(world: World) -> None:
    world.engine.commit([Mutation(X, b"1")])
    lost = Fault(reply=Reply.MAYBE_APPLIED)
    world.faults.plan = lambda call: lost
    results = world.engine.commit_many(
        [([Mutation(X, b"2")], []), ([Mutation(Y, b"2")], [Exact(Z, b"no")])]
    )
    assert isinstance(results[0], CommitOutcomeUnknown)
    assert isinstance(results[1], AssertionFailedError)  # it has aborted, or never was
    assert world.client(seed=2).outcome(results[0].transaction).value == "committed"


def test_a_row_that_is_absent_after_a_long_time_tells_nothing(world: World) -> None:
    world.engine.commit([Mutation(X, b"1")])

    def pause() -> None:
        world.clock.advance(WRITTEN_WITHIN_MS)

    before(world, is_local, lambda: before(world, lambda call: True, pause, times=99), LOST)
    with pytest.raises(CommitOutcomeUnknown):
        world.engine.commit([Mutation(X, b"2")])


def test_where_a_table_is_gone_the_others_go_on() -> None:
    tables = Tables()
    tables.faults.features |= {"atomic"}
    tables.engine.commit(BOTH)
    tables.disable()
    results = tables.engine.commit_many([(BOTH, []), ([Mutation(Z, b"2")], [])])
    assert isinstance(results[0].__cause__, TableUnavailable)  # type: ignore[union-attr]
    assert isinstance(results[1], Committed)
    assert (tables.value(NEAR), tables.value(Z), tables.holder(NEAR)) == (b"1", b"2", b"")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def opened(path: str, query: str = "?sync=off", clock: Clock | None = None) -> Engine:
    store: Store = open_store(f"embedded://{path}{query}", clock)
    store.ensure_table(TABLE, {b"d": Family()})
    policy = Policy(store_patience_ms=10)
    return Engine(store, table=TABLE, policy=policy, rng=Random(1))


def values(engine: Engine) -> list[bytes | None]:
    cells = engine.context.store.read([X, Y, X.lock, Y.lock])
    return [cell.value if cell else None for cell in cells.values()]


def watch_disk(monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[[], None]], None]) -> None:
    inner = lmdb_module._Shared._apply

    def apply(shared: Any, step: Callable[[], None]) -> None:
        inner(shared, lambda: act(step))

    monkeypatch.setattr(lmdb_module._Shared, "_apply", apply)


def fail(step: Callable[[], None]) -> None:
    step.__self__.abort()  # type: ignore[attr-defined]  # as LMDB does
    raise lmdb.DiskError("no more disk")


def fail_afterwards(step: Callable[[], None]) -> None:
    step()
    raise lmdb.DiskError("no more disk")


@pytest.mark.parametrize(
    ("end", "times", "error"),
    [
        (fail_afterwards, 1, None),
        (fail, 1, NotApplied),
        (fail_afterwards, 1_000, CommitOutcomeUnknown),  # a power failure may undo it
    ],
)
def test_an_error_of_the_disk_at_its_end_is_settled(
    path: str,
    end: Callable[[Callable[[], None]], None],
    times: int,
    error: type[Exception] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = opened(path, "")
    engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    left = [end] * times
    watch_disk(monkeypatch, lambda step: left.pop()(step) if left else step())
    changes = [Mutation(X, b"2"), Mutation(Y, b"2")]
    with pytest.raises(error) if error else nullcontext():
        engine.commit(changes)
    left.clear()
    assert values(engine) == [b"1" if end is fail else b"2"] * 2 + [b"", b""]
    engine.close()


def ordered_put(store: LmdbStore, key: bytes, value: bytes, *, durable: bool = False) -> None:
    store.write(lambda writer: writer.put(key, value), durable=durable)


def ordered_get(store: LmdbStore, key: bytes) -> bytes | None:
    return store.read(lambda reader: reader.get(key))


@pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
def test_an_error_in_a_local_transaction_undoes_all_of_it(
    path: str, rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where somebody catches it on its way: what follows a full map is not to be committed."""
    store = LmdbStore(path, sync=False)
    tries = []
    if not rule:
        monkeypatch.setattr(lmdb_module._Joined, "run", lambda _, body, writer: body(writer))

    def work() -> None:
        tries.append(1)
        for number in range(3):
            ordered_put(store, b"%d" % number, bytes(FIRST_MAP_SIZE))
            with suppress(lmdb.Error):  # what the protocol must not do
                store.read(lambda reader: list(reader.keys(b"", b"9")))

    if rule:
        store.atomically(work)
        assert len(tries) > 1
        sizes = [len(ordered_get(store, b"%d" % number) or b"") for number in range(3)]
        assert sizes == [FIRST_MAP_SIZE] * 3
    else:
        with pytest.raises(lmdb.BadTxnError):
            store.atomically(work)
    store.close()


def test_what_is_gathered_is_seen_by_every_way_of_reading(path: str) -> None:
    store = LmdbStore(path, sync=False)
    ordered_put(store, b"a", b"0")
    seen: list[object] = []

    def look(reader: Reader) -> None:
        seen.append(list(reader.items(b"", b"z")))
        seen.append((list(reader.keys(b"", b"z")), reader.before(b"c"), reader.get(b"a")))

    def work() -> None:
        ordered_put(store, b"b", b"1")
        store.read(look)
        store.write(lambda writer: writer.delete(b"a"))
        ordered_put(store, b"c", b"2")
        store.read(look)

    store.atomically(work)
    assert seen == [
        [(b"a", b"0"), (b"b", b"1")],
        ([b"a", b"b"], b"b", b"0"),
        [(b"b", b"1"), (b"c", b"2")],
        ([b"b", b"c"], b"b", None),
    ]
    store.close()


@pytest.mark.parametrize("scheme", ["memory://", "embedded://"])
def test_a_process_without_free_descriptors_writes_nothing(scheme: str, path: str) -> None:
    """The first commit reads a file of the kernel's, and each one of LMDB opens a lock file."""
    uri = scheme if scheme == "memory://" else scheme + path
    key, limits, held = Key("r", "d", "c", "t"), resource.getrlimit(resource.RLIMIT_NOFILE), []
    _find_boot.cache_clear()
    with connect(uri, policy=Policy(store_patience_ms=1)) as engine:
        engine.ensure_table("t", ["d"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(NotApplied, match="nothing was written"):
                engine.commit([Mutation(key, "1")])
        finally:
            for each in held:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert engine.read([key]) == {key: None}
        assert engine.commit([Mutation(key, "2")]).complete


def test_a_child_that_is_forked_in_it_commits_nothing(path: str) -> None:
    """The transaction is its parent's."""
    calls = [0]

    class Forking(ManualClock):
        def wall_ms(self) -> int:
            calls[0] += 1
            if calls[0] == 0:
                assert is_inside()
                children.append(os.fork())
            return super().wall_ms()

    def is_inside() -> object:
        store: Any = engine.context.store
        return store._ordered._joined.writer is not None

    children: list[int] = []
    engine = opened(path, clock=Forking())
    engine.commit([Mutation(X, b"1")])
    parent = os.getpid()
    calls[0] = -2  # in the middle of what is done together
    try:
        found: object = engine.commit([Mutation(X, b"2")])
    except (StoreError, CommitOutcomeUnknown) as error:
        found = error
    if os.getpid() != parent:
        os._exit(0 if isinstance(found, StoreClosedError | CommitOutcomeUnknown) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert isinstance(found, Committed)
    assert values(engine)[0] == b"2"
    assert len(list(engine.context.store.scan(b"txn"))) == 3  # and the name of the protocol
    engine.close()


def test_a_full_disk_is_called_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB calls a write that came to less than was asked for an input/output error."""
    error = lmdb_module.lmdb.Error("mdb_txn_commit: Input/output error")
    assert lmdb_module.find_reason("/", error) == str(error)
    full = SimpleNamespace(f_bavail=1, f_frsize=4_096)
    monkeypatch.setattr(lmdb_module.os, "statvfs", lambda path: full)
    assert lmdb_module.find_reason("/", error).startswith("the disk is full, 4,096 bytes are free")
