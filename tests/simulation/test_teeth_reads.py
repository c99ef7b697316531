"""Safeguards of reads, ranges, validated keys, and snapshots of many readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.simulation import variants
from tests.simulation.calls import Match, asks_for, finishes, keys, reads_row, sleeps, takes
from tests.simulation.keys import ADD, FIRST, ITEM, NONE, A, B, X, Y, Z
from tests.simulation.puppets import Puppet, plans, when
from tests.simulation.rules import (
    Patch,
    TakeOut,
    both_protocols,
    set_name,
    with_and_without,
    without,
)
from tests.simulation.teeth import (
    IN_NO_ORDER,
    ONE_ATTEMPT,
    Block,
    die,
    put,
    putting,
    seen,
    values,
    writes,
)
from tests.simulation.variants import believe_what_was_read
from tests.simulation.world import TABLE, TRANSACTIONS, World, key
from txn import AbortedError, ConflictError, Delete, Engine, Exact, Key, Mutation, Not, Some
from txn.model import Row
from txn.protocol import prepare, six_phase
from txn.protocol.context import Context
from txn.protocol.locks import holder_of
from txn.protocol.row import FAMILY, column
from txn.protocol.statuses import ProtocolName, Status
from txn.reading import instants
from txn.reading.feed import Bounds
from txn.reading.instants import Instant, LaterChanges, Placement, find_instant, restore_rows
from txn.spans import Span
from txn.testing.faulty import Call, Crash, Fault, Reply

pytestmark = pytest.mark.usefixtures("rows_for_all")


@without("reading.snapshot.value_of", variants.trust_all_decided)
def test_the_buffer_speaks_only_for_a_holder_at_2_asserted(rule: bool, world: World) -> None:
    """Whoever trusts the buffer of any decided holder reads what T2 has replaced."""
    ghost = when(takes(X), Fault(late=frozenset({1})))
    stop = when(asks_for(Status.COMPLETE), Fault(NONE, Reply.CRASH))
    first, store = world.client(plans(ghost, stop))
    with pytest.raises(Crash):
        first.commit([Mutation(X, b"1")])
    put(world, X, value=b"2")
    store.deliver()
    assert world.values([X.lock])[X.lock] == world.rows()[0].row_key
    assert values(world.engine().read([X])) == [b"2" if rule else b"1"]


LOOKS: list[tuple[ProtocolName, TakeOut]] = [
    ("six-phase", set_name("reading.snapshot._try", variants.look_once)),
    ("six-phase", set_name("reading.snapshot._is_last", lambda value, tag: True)),
    ("fenced", variants.look_at_locks_once),
]


@pytest.mark.parametrize(("protocol", "take_out"), LOOKS, ids=["cells", "tags", "locks"])
@with_and_without
def test_cells_tags_and_locks_are_looked_at_twice(
    rule: bool, take_out: TakeOut, monkeypatch: Patch, world: World
) -> None:
    """A transaction commits both keys between the reads of their rows, and lets its locks go."""
    if not rule:
        take_out(monkeypatch)
    put(world, X, Y, value=b"0")
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(Y))
    put(world, X, Y)
    assert values(reader.finish()) == [b"1" if rule else b"0", b"1"]


@without("reading.snapshot._was_undecided", lambda *args: True)
def test_one_look_is_enough_only_where_nobody_has_decided(rule: bool) -> None:
    """T1 was told committed, and has not put its value yet: the fenced lock's holder knows it."""
    world = World(protocol="fenced")
    put(world, X, value=b"0")
    die(world, finishes(X), *ADD)
    assert values(world.engine().read([X])) == [b"1" if rule else b"0"]


@both_protocols
@without("reading.snapshot.has_crossed", lambda before, after: False)
def test_holders_are_looked_at_twice(rule: bool, protocol: ProtocolName, world: World) -> None:
    """One decides after the reader has looked at it, the other before: only the later is seen."""
    put(world, X, Y, value=b"0")
    writers = {k: putting(world, k) for k in (X, Y)}
    for writer in writers.values():
        writer.until(asks_for(Status.ASSERTED))
    locks = {k: k.lock if protocol == "six-phase" else k.row_lock for k in (X, Y)}
    cells = world.memory.read(list(locks.values()))
    holders = {k: holder_of(lock, cells[lock]) for k, lock in locks.items()}
    earlier, later = sorted((X, Y), key=lambda k: holders[k])  # as the reader looks at their rows
    reader = Puppet(world, lambda engine: engine.read([X, Y]), by_row=True)
    reader.until(reads_row(X._replace(row=holders[later])))
    for k in (earlier, later):
        writers[k].until(finishes(k))
    found = dict(zip((X, Y), values(reader.finish()), strict=True))
    assert found == ({X: b"1", Y: b"1"} if rule else {earlier: b"0", later: b"1"})


@without("protocol.prepare.find_phantom", lambda *_: None)
def test_ranges_are_looked_at_under_the_locks(rule: bool, world: World) -> None:
    """Two blocks find a range empty, and each adds to it: one of them must not."""
    one, two = Block(world, A), Block(world, B)
    one.until(asks_for(Status.ASSERTED))
    assert two.finish() is not rule
    assert one.finish()


def validator(world: World, written: Key, *absent: Key, attempts: int = 1) -> Puppet[bool]:
    """A client that puts a key if others are absent; it returns whether it has."""

    def commit(engine: Engine) -> bool:
        asserted = [Not(Some(each)) for each in absent]
        try:
            engine.commit([Mutation(written, b"3")], asserted, validate=True)
        except AbortedError:
            return False
        return True

    return Puppet(world, commit, policy=replace(ONE_ATTEMPT, attempts=attempts), by_row=True)


def put_before(match: Match, client: Puppet[bool], world: World) -> list[bool]:
    """At this call of a client that writes Y somebody puts A, and somebody reads both."""
    client.until(match)
    put(world, A)
    return [*seen(world.engine(), A, Y), client.finish()]


@both_protocols
@pytest.mark.parametrize("client", [Block, lambda world, written: validator(world, written, A)])
@without("reading.snapshot.hides_values", lambda rules, holder, cells: False)
def test_readers_wait_for_a_transaction_that_has_validated(
    rule: bool, client: Callable[[World, Key], Puppet[bool]], world: World
) -> None:
    """It has looked at its range or its key, and is about to decide."""
    found = put_before(asks_for(Status.ASSERTED), client(world, Y), world)
    assert (found != IN_NO_ORDER) is rule


@without("protocol.six_phase.prepare_six_phase", variants.look_before_the_step)
def test_ranges_are_looked_at_once_the_row_says_so(
    rule: bool, monkeypatch: Patch, world: World
) -> None:
    """Readers do not wait for an attempt that waits for locks, while its row is at 0-WRITTEN."""
    monkeypatch.setattr(prepare, "EARLY", prepare.LATE)
    found = put_before(asks_for(Status.LOCKED), Block(world, Y), world)
    assert (found != IN_NO_ORDER) is rule


@without("protocol.prepare.EARLY", prepare.LATE)
def test_readers_wait_at_0_for_an_attempt_that_does_not_wait(rule: bool) -> None:
    """A fenced transaction decides from 0: its mark says that readers wait for it there."""
    world = World(protocol="fenced")
    found = put_before(asks_for(Status.ASSERTED), validator(world, Y, A), world)
    assert (found != IN_NO_ORDER) is rule


def exchange(world: World, comes: Key, goes: Key) -> None:
    put(world, comes)
    world.engine().commit([Delete(goes)])


@without("protocol.ranges.Digest.add", variants.forget_what_is_left)
def test_ranges_with_deleted_keys_are_looked_at_twice(rule: bool, world: World) -> None:
    """A comes where the block has looked, and B goes from where it has not."""
    put(world, A)
    world.engine().commit([Delete(A)])
    block = Block(world, Y)
    put(world, X, B)
    assert block.block.get(X) == b"1"
    block.until(asks_for(Status.LOCKED))
    block.until(reads_row(B))
    exchange(world, A, B)
    assert block.finish() is not rule


@without("protocol.ranges.Digest.add", variants.forget_what_is_left)
def test_what_is_left_of_deleted_keys_is_compared(rule: bool, world: World) -> None:
    """One of two items is always there, and never where a snapshot looks."""
    put(world, A, B)
    world.engine().commit([Delete(A)])
    reader = Puppet(
        world, lambda engine: list(engine.scan(prefix=ITEM, snapshot=True)), by_row=True
    )
    for next_row, comes, goes in ((B, A, B), (A, B, A), (B, A, B)):
        reader.until(reads_row(next_row))
        exchange(world, comes, goes)
    assert bool(reader.finish()) is rule


def test_a_block_that_comes_between_two_looks_is_waited_for(world: World) -> None:
    """Somebody who only reads meets it when looking whether all is as it was."""

    def look(engine: Engine) -> bool:
        with engine.transaction() as t:
            return t.get(X) is not None and not t.scan(prefix=ITEM)

    put(world, X)
    reader = Puppet(world, look, by_row=True)
    for _ in range(3):  # to read, to look, and to look again
        assert reader.until(reads_row(X))
    block = Block(world, X)
    block.until(asks_for(Status.ASSERTED))
    assert reader.finish()
    assert not block.finish()


@without(believe_what_was_read)
@both_protocols
def test_two_that_validate_what_the_other_writes(rule: bool, world: World) -> None:
    """Write skew: each finds the other's key absent, and puts its own."""
    one, two = validator(world, Y, A), validator(world, A, Y)
    two.until(asks_for(Status.WRITTEN))
    one.until(asks_for(Status.ASSERTED))
    assert two.finish() is not rule
    assert one.finish()


@without(believe_what_was_read)
@both_protocols
def test_a_validated_key_is_free(rule: bool, world: World) -> None:
    """Its cell may be old: somebody has committed another value, and not put it yet."""
    one = validator(world, Y, A)
    one.until(asks_for(Status.WRITTEN))
    two = putting(world, A, B)
    two.until(writes)
    assert one.finish() is not rule
    assert two.finish()


def list_marks(world: World) -> list[bytes]:
    rows = world.memory.scan(TRANSACTIONS, columns=[(FAMILY, b"ranges")])
    return [cell.value for row in rows for cell in row.cells.values()]


def forget_who_waited(patch: Patch) -> None:
    own = six_phase._must_look_again
    patch.setattr(six_phase, "_must_look_again", lambda t: own(replace(t, is_patient=False)))


@without(forget_who_waited)
def test_an_attempt_that_waited_for_locks_validates_after_its_step(
    rule: bool, world: World
) -> None:
    """Readers do not wait for it before 1-LOCKED, and what it read earlier may be older."""
    put(world, Y)
    first = putting(world, Y, value=b"2")
    first.until(asks_for(Status.ASSERTED))
    waiting = validator(world, Y, A, attempts=2)
    waiting.store.reads_early = lambda: True
    while waiting.until(sleeps) and b"1" not in list_marks(world):
        pass
    first.finish()
    waiting.until(asks_for(Status.LOCKED))
    put(world, A)
    assert values(world.engine().read([A, Y])) == [b"1", b"2"]
    assert waiting.finish() is not rule


@without("protocol.fenced.advance", lambda context, transactions, new: [])
def test_a_fenced_attempt_that_waited_says_so_before_it_validates(rule: bool) -> None:
    """Readers do not wait for it at 0-WRITTEN: its mark says that it took its locks late."""
    world = World(protocol="fenced")
    put(world, Y)
    first = putting(world, Y, B, value=b"2", policy=replace(ONE_ATTEMPT, lock_ttl_ms=60_000))
    first.until(asks_for(Status.ASSERTED))
    waiting = validator(world, Y, A, attempts=2)
    for _ in range(12):
        waiting.until(sleeps)
    first.finish()
    waiting.until(asks_for(Status.ASSERTED))
    assert b"1" in list_marks(world)
    put(world, A)
    saw = values(world.engine().read([A, Y]))
    assert (saw == [b"1", b"2"] and waiting.finish()) is not rule


def look_at_each_key_alone(patch: Patch) -> None:
    believe_what_was_read(patch)
    patch.setattr(six_phase, "_must_look_again", lambda t: False)


@without(look_at_each_key_alone)
@both_protocols
def test_keys_in_several_rows_are_validated_at_one_instant(
    protocol: ProtocolName, rule: bool, world: World
) -> None:
    """One of two keys is always there. They change places between the looks at them."""
    put(world, B)
    one = validator(world, Y, A, B)
    if protocol == "six-phase":
        one.until(asks_for(Status.LOCKED))
    one.until(reads_row(B))
    world.engine().commit([Mutation(A, b"1"), Delete(B)])
    assert one.finish() is not rule


@without(believe_what_was_read)
def test_a_fenced_key_is_as_it_was_when_it_was_read(rule: bool) -> None:
    """It has changed since, and is free again: only its count tells."""
    world = World(protocol="fenced")
    one = validator(world, Y, A)
    one.until(asks_for(Status.WRITTEN))
    put(world, A)
    assert one.finish() is not rule


K = key("k")
BOUNDS = Bounds(0, 25_000)
LABELS = {"of": "a row"}
"""Fenced transactions of one unit have a row if they have labels."""
Changes = Sequence[Mutation | Delete]
Values = dict[bytes, bytes]


def commit(world: World, *changes: Mutation | Delete, ms: int = 5) -> bytes:
    transaction = world.engine().commit(changes, labels=LABELS).transaction
    world.clock.advance(ms)
    return transaction


def read(engine: Engine, instant: Instant) -> Values:
    span = Span(TABLE)
    rows = restore_rows(engine.context, [span], instant, list(engine.backend.scan(span)))
    return {key.row: cell.value for row in rows for key, cell in row.cells.items()}


def lists(row_key: bytes, call: Call) -> bool:
    """Whether a listing has come to this transaction; a look at its changes reads its buffer."""
    is_there = reads_row(key("")._replace(row=row_key))(call)
    return is_there and all(item.column != b"buffer" for item in keys(call))


def read_past_undecided(
    world: World, instant: Instant, first: Changes, later: Mutation | Delete
) -> Values:
    """Return what a task shows whose first listing passes a transaction while it is undecided."""
    owner = Puppet(world, partial(Engine.commit, mutations=first, labels=LABELS))
    owner.until(asks_for(Status.ASSERTED))
    world.clock.advance(5)
    behind = commit(world, Mutation(Z, b"another"))
    task = Puppet(world, lambda engine: read(engine, instant), by_row=True)
    assert task.until(partial(lists, behind)) is not None
    owner.finish()
    commit(world, later)
    return task.finish()


def list_once(patch: Patch) -> None:
    look = LaterChanges._read_changes
    patch.setattr(LaterChanges, "_read_changes", lambda self: self._known or look(self))


restore_older_cells = set_name("reading.instants._precedes", lambda *_: False)
FIRST_CHANGES: dict[str, tuple[Mutation | Delete, list[Key], TakeOut]] = {
    "put": (Mutation(K, b"1"), [K, Y], restore_older_cells),
    "delete": (Delete(K), [K, Y], restore_older_cells),
    "absent": (Mutation(K, b"1"), [Y], list_once),
}


@both_protocols
@pytest.mark.parametrize("name", FIRST_CHANGES)
@with_and_without
def test_what_is_older_than_the_first_known_change_stays(
    rule: bool, name: str, monkeypatch: Patch, world: World
) -> None:
    """Taking back the first change that a listing knows would show half of a transaction."""
    change, founded, take_out = FIRST_CHANGES[name]
    if not rule:
        take_out(monkeypatch)
    commit(world, *(Mutation(k, b"0") for k in founded), ms=1_000)
    instant = find_instant(world.engine().context, BOUNDS)
    found = read_past_undecided(world, instant, [change, Mutation(Y, b"1")], Mutation(K, b"2"))
    assert (found == {k.row: b"0" for k in founded}) is rule


def count_first_writes(patch: Patch) -> None:
    """Take the date of a fenced row's first write for proof that its place is later."""
    describe = instants._describe

    def describe_by_it(context: Context, row: Row, at_ms: int) -> Placement:
        found = describe(context, row, at_ms)
        written = row.cells.get(column(context.table, row.row, Status.WRITTEN.at))
        return found._replace(placed_ms=max(found.placed_ms, written.timestamp if written else 0))

    patch.setattr(instants, "_describe", describe_by_it)


class Delivering:
    """A planner's clock: while it sleeps, after its marks, late requests of an owner arrive."""

    def __init__(self, world: World, owner: Puppet[Any]) -> None:
        self._world = world
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.clock, name)

    def sleep_ms(self, duration_ms: int) -> None:
        self._world.clock.sleep_ms(duration_ms + 3)
        if self._owner.store.in_flight:
            self._owner.store.deliver()


@without(count_first_writes)
@pytest.mark.parametrize("ahead_ms", [0, 30_000], ids=["right clock", "clock ahead"])
def test_a_late_first_write_proves_no_place(ahead_ms: int, rule: bool) -> None:
    """Nothing compares a fenced row's first write, so a duplicate dates it again."""
    world = World(protocol="fenced")
    commit(world, Mutation(X, b"0"), ms=100)
    commit(world, Mutation(Y, b"0"), ms=100)
    clock = world.clock.__class__(world.clock.wall_ms() + ahead_ms)
    owner = Puppet(
        world,
        lambda engine: engine.commit([Mutation(Y, b"1")], [Exact(X, b"0")], validate=True),
        faults=when(asks_for(Status.WRITTEN), Fault(late=FIRST)),
        clock=clock if ahead_ms else None,
    )
    assert owner.until(asks_for(Status.ASSERTED)) is not None and owner.store.in_flight
    world.clock.advance(10)
    commit(world, Mutation(X, b"1"), ms=10)
    planner = replace(world.engine().context, clock=Delivering(world, owner))
    if rule:
        with pytest.raises(ConflictError, match="decide too often"):
            find_instant(planner, BOUNDS)
        return
    instant = find_instant(planner, BOUNDS)
    owner.finish()
    assert read(world.engine(), instant) == {b"x": b"1", b"y": b"0"}, "no order has this state"
