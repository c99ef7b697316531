"""Wrong clocks: who compares its own with the store's time, and refuses its own work."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from recovery import Kind, LeftAlone, Repaired, check, compact, repair
from recovery.commands import main
from recovery.convert import convert
from recovery.doctor import Verdict, examine
from recovery.purge import purge_token
from tests.unit.worlds import POLICY, TABLE, World, X, Y
from txn import clock as clock_module
from txn.client.engine import Engine
from txn.client.parts import PartsClient
from txn.clock import Clock, SystemClock
from txn.errors import AbortedError, InvalidRequestError, NotApplied, StoreError
from txn.model import Cell, Delete, Edit, Family, Mutation
from txn.protocol import clocks
from txn.protocol.clocks import accept_clock, check_clock, decode_note, find_step, measure_skew
from txn.protocol.row import column
from txn.protocol.statuses import ProtocolName
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, FaultyStore, Reply
from txn.text import escape

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TEN_MINUTES = 10 * MINUTE_MS
both_ways = pytest.mark.parametrize("offset_ms", [TEN_MINUTES, -TEN_MINUTES], ids=["on", "back"])
both = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


class Offset:
    """The clock of a machine whose time of day differs from another's, by an offset."""

    def __init__(self, right: Clock, offset_ms: int = 0) -> None:
        self.right = right
        self.offset_ms = offset_ms
        self.monotonic_ms = right.monotonic_ms
        self.sleep_ms = right.sleep_ms

    def wall_ms(self) -> int:
        return self.right.wall_ms() + self.offset_ms


class Machine(SystemClock):
    """The clocks of this machine, as if it had been so until now: all its processes have them."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.up_ms = 1_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.up_ms


class Servers(World):
    """A store of servers, whose clock is the world's, and a client with a clock of its own."""

    def __init__(self, protocol: ProtocolName = "fenced", offset_ms: int = 0) -> None:
        super().__init__(protocol=protocol)
        self.own = Offset(self.clock, offset_ms)
        self.faulty = self.remote()
        self.other = Engine(self.faulty, table=TABLE, policy=POLICY, clock=self.own, rng=Random(7))
        self.other.check_request(([Mutation(X, b"0")], []))
        self.faulty.calls = 0

    def remote(self) -> FaultyStore:
        store = FaultyStore(self.store)
        store.features |= {"remote_calls"}
        return store


@both_ways
def test_a_fenced_client_with_a_wrong_clock_commits_nothing(offset_ms: int) -> None:
    world = Servers(offset_ms=offset_ms)
    word = "ahead_ms" if offset_ms > 0 else "behind_ms"
    with pytest.raises(AbortedError, match=f"nothing was written.* {word}=600000 limit_ms=60000"):
        world.other.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    with pytest.raises(AbortedError, match=word):
        world.other.commit([Mutation(X, b"1")])
    with pytest.raises(AbortedError, match=word):
        world.other.run(lambda t: t.put(X, b"1"))
    assert (world.rows(), world.cell(X)) == ([], None)
    assert world.engine.commit([Mutation(X, b"2")]).complete


def test_clocks_are_compared_at_first_and_every_few_minutes() -> None:
    world = Servers()
    calls = []
    for wait_ms in (0, 0, clocks.COMPARE_EACH_MS - 1, 1):
        world.clock.advance(wait_ms)
        world.faulty.calls = 0
        world.other.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
        world.other.flush()
        calls.append(world.faulty.calls)
    usual = calls[1]
    assert calls == [usual + 2, usual, usual, usual + 2]


@both_ways
def test_a_clock_that_is_set_is_compared_at_once(offset_ms: int) -> None:
    world = Servers()
    world.other.commit([Mutation(X, b"1")])
    world.clock.advance(DAY_MS)  # both clocks went on while the client was stopped
    world.other.commit([Mutation(X, b"2")])
    world.own.offset_ms = offset_ms
    with pytest.raises(AbortedError, match="nothing was written"):
        world.other.commit([Mutation(X, b"2")])
    world.own.offset_ms = offset_ms // 20
    assert world.other.commit([Mutation(X, b"3")]).complete


def test_a_server_that_does_not_tell_its_time_stops_nobody_whose_clock_was_right() -> None:
    """That region may be away, and those of the commit not. It is asked again a minute later."""
    world = Servers()
    refuse = Fault(frozenset(), Reply.NOT_APPLIED)
    is_asked = 0

    def plan(call: Call) -> Fault:
        nonlocal is_asked
        item = call.items[0] if call.items else None
        asks = isinstance(item, Edit) and item.key.column == b"clock"
        is_asked += asks
        return refuse if asks else Fault()

    world.other.commit([Mutation(X, b"1")])
    world.faulty.plan = plan
    for wait_ms, asked in ((clocks.COMPARE_EACH_MS, 1), (0, 1), (clocks.TRY_AGAIN_MS, 2)):
        world.clock.advance(wait_ms)
        assert world.other.commit([Mutation(X, b"2")]).complete
        assert is_asked == asked
    world.own.offset_ms = 2_000  # it was set, by whatever: now it has to be known
    with pytest.raises(NotApplied):
        world.other.commit([Mutation(X, b"3")])


@both_ways
def test_a_clock_that_is_set_during_a_commit_ends_it(offset_ms: int) -> None:
    world = Servers()
    world.other.commit([Mutation(X, b"1")])

    def set_clock(call: Call) -> Fault:
        world.own.offset_ms = offset_ms
        return Fault()

    world.faulty.plan = set_clock
    with pytest.raises(AbortedError, match="was set meanwhile: nothing was committed"):
        world.other.commit([Mutation(X, b"2")])
    assert world.value(X) == b"1"


def test_parts_are_refused_by_whichever_process_has_a_wrong_clock() -> None:
    world = Servers()
    right, wrong = PartsClient(world.engine), PartsClient(world.other)
    whole = right.begin()
    right.write(whole, 0, 0, [Mutation(X, b"1")])
    world.own.offset_ms = TEN_MINUTES
    with pytest.raises(AbortedError, match="nothing was written"):
        wrong.begin()
    with pytest.raises(AbortedError, match="nothing was written"):
        wrong.write(whole, 1, 0, [Mutation(Y, b"1")])
    with pytest.raises(AbortedError, match="nothing was written"):
        wrong.commit(whole, [1], 0)
    assert world.value(X) is None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply.MAYBE_APPLIED, "nothing else was written: the reply was lost"),
        (Reply.NOT_APPLIED, "the store refused the call"),
    ],
)
def test_a_commit_whose_clock_could_not_be_compared_did_not_happen(
    reply: Reply, reason: str
) -> None:
    world = Servers()
    world.faulty.plan = lambda call: Fault(frozenset(), reply)
    for call in (
        lambda: world.other.commit([Mutation(X, b"1"), Mutation(Y, b"1")]),
        lambda: world.other.run(lambda t: t.put(X, b"1"), deadline_ms=100),
    ):
        with pytest.raises(NotApplied, match=reason):
            call()


def test_a_time_that_somebody_else_has_stamped_is_not_taken_for_the_servers() -> None:
    """A server whose clock was ahead had the region before: a cell of the client's own tells."""
    world = Servers()
    other = column(b"txn", b"protocol", b"clock")
    world.store.write([Edit(other, b"another", world.clock.wall_ms() + HOUR_MS)])
    assert measure_skew(world.other.context) == 0
    (row,) = world.store.scan(b"txn", b"protocol", b"protocol\0")
    assert {key.column for key in row.cells} == {b"name", b"rows", b"clock"}
    assert world.other.commit([Mutation(X, b"1")]).complete


def test_a_time_that_nobody_tells_is_no_difference() -> None:
    """What was written does not show, as below somebody's delete of the row in the future."""
    world = Servers()
    world.faulty.plan = lambda call: Fault(frozenset()) if call.method == "write" else Fault()
    world.faulty.read = lambda *keys: dict.fromkeys(keys[0])  # type: ignore[method-assign]
    world.faulty.write = lambda *args, **kwargs: None  # type: ignore[method-assign]
    assert measure_skew(world.other.context) == 0


def test_an_answer_that_took_too_long_tells_nothing() -> None:
    world = Servers(offset_ms=TEN_MINUTES)

    def stop(call: Call) -> Fault:
        world.clock.advance(POLICY.skew_ms)
        return Fault()

    world.faulty.plan = stop
    with pytest.raises(StoreError, match="took too long to tell its time"):
        world.other.commit([Mutation(X, b"1")])
    assert world.cell(X) is None


@both
def test_a_repair_by_a_wrong_clock_forgets_nothing(protocol: ProtocolName) -> None:
    world = Servers(protocol)
    first = world.engine.commit([Mutation(X, b"1")], once="job", once_retention_ms=HOUR_MS)
    world.engine.commit([Delete(X)])
    world.clock.advance(1_000)
    world.own.offset_ms = 25 * HOUR_MS
    context = world.other.context
    findings = list(check(context, scan=[TABLE]))
    results = [repair(context, finding) for finding in findings]
    assert {finding.kind for finding in findings} >= {Kind.EXPIRED, Kind.EXPIRED_MARKER}
    assert all(isinstance(r, LeftAlone) and "ahead_ms=90000000" in r.why for r in results)
    again = world.engine.commit([Mutation(X, b"1")], once="job", once_retention_ms=HOUR_MS)
    assert (again.repeated, again.transaction) == (True, first.transaction)


@both
def test_what_else_goes_by_age_refuses_a_wrong_clock(protocol: ProtocolName) -> None:
    world = Servers(protocol, TEN_MINUTES)
    world.engine.commit([Mutation(X, b"1")], once="job")
    context = world.other.context
    other: ProtocolName = "fenced" if protocol == "six-phase" else "six-phase"
    works: list[Callable[[], Any]] = [lambda: compact(context), lambda: convert(context, other)]
    if protocol == "six-phase":
        works.append(lambda: purge_token(context, b"job"))
    for work in works:
        with pytest.raises(AbortedError, match="ahead_ms=600000"):
            work()
    with pytest.raises(InvalidRequestError, match="have clocks of their own"):
        accept_clock(context)


class Embedded:
    """A store of this machine, and the engines of processes that have come and gone."""

    def __init__(self, protocol: ProtocolName = "six-phase") -> None:
        self.machine = Machine()
        self.store = open_store("memory://", self.machine)
        self.store.ensure_table(TABLE, {b"d": Family()})
        self.protocol: ProtocolName = protocol

    def start(self) -> Engine:
        return Engine(
            self.store,
            table=TABLE,
            policy=POLICY,
            clock=self.machine,
            rng=Random(3),
            protocol=self.protocol,
        )

    def boot(self, monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
        """Let the machine boot, with this time of day."""
        monkeypatch.setattr(clock_module, "_find_boot", lambda: b"boot-%d" % now_ms)
        self.machine.now_ms, self.machine.up_ms = now_ms, 500


@both
@pytest.mark.parametrize("hours", [25, -25])
def test_a_clock_that_was_set_deletes_nothing_by_age(protocol: ProtocolName, hours: int) -> None:
    world = Embedded(protocol)
    world.start().commit([Mutation(X, b"1")], once="job", once_retention_ms=HOUR_MS)
    world.machine.now_ms += hours * HOUR_MS
    context = world.start().context
    findings = list(check(context, scan=[TABLE]))
    for finding in findings:
        result = repair(context, finding)
        assert isinstance(result, LeftAlone)
    with pytest.raises(
        AbortedError, match=r"was set.*nothing was written.*--accept-clock.*90000000"
    ):
        compact(context)
    assert world.start().commit([Mutation(X, b"2")]).complete
    accept_clock(context)
    compact(context)
    assert find_step(world.start().context) == 0
    if hours > 0:
        assert {type(repair(context, finding)) for finding in findings} == {Repaired}


@both
def test_a_clock_that_nobody_could_follow_commits_nothing(protocol: ProtocolName) -> None:
    """A year ahead: for as long the others would be refused. Set right it commits at once."""
    world = Embedded(protocol)
    engine = world.start()
    engine.commit([Mutation(X, b"1")])
    world.machine.now_ms += 365 * DAY_MS
    for each in (engine, world.start()):
        with pytest.raises(AbortedError, match="ahead_ms=31536000000 limit_ms=2592000000"):
            each.commit([Mutation(X, b"2")])
    world.machine.now_ms -= 365 * DAY_MS
    assert engine.commit([Mutation(X, b"2")]).complete


def test_a_boot_with_an_earlier_time_of_day_is_seen_even_when_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Embedded()
    world.start().commit([Mutation(X, b"1")])
    right_ms = world.machine.now_ms
    world.boot(monkeypatch, right_ms - DAY_MS)
    world.start().commit([Mutation(X, b"2")])
    context = world.start().context
    assert find_step(context) == -DAY_MS
    world.machine.now_ms += DAY_MS + 1
    assert find_step(context) == DAY_MS + 1


@pytest.mark.parametrize("value", [b"", b"no note", b"boot 1 2", b"boot 1 2 x"])
def test_a_note_that_does_not_decode_is_replaced(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Embedded()
    engine = world.start()
    world.store.write([Edit(column(b"txn", b"protocol", b"boot"), value, None)])
    assert decode_note(value) is None
    engine.commit([Mutation(X, b"1")])
    world.machine.now_ms += HOUR_MS
    assert find_step(engine.context) == HOUR_MS
    monkeypatch.setattr(clock_module, "_find_boot", lambda: b"")  # a machine without such names
    world = Embedded()
    engine = world.start()
    engine.commit([Mutation(X, b"1")])
    world.machine.now_ms += DAY_MS
    check_clock(engine.context)
    assert engine.context.store.read([column(b"txn", b"protocol", b"boot")]).popitem()[1] is None


def test_a_person_accepts_a_clock_by_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    store, boot = open_store(uri), column(b"txn", b"protocol", b"boot")
    Engine(store).ensure_table(TABLE, ["d"])
    Engine(store).commit([Mutation(X, b"1")])
    (cell,) = store.read([boot]).values()
    note = cell and decode_note(cell.value)
    assert note is not None
    early = note._replace(wall_ms=note.wall_ms - DAY_MS)
    store.write([Edit(boot, early.encode(), None)])

    def fsck(*options: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["txn", "fsck", "--store", uri, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    code, told = fsck("--repair")
    assert code not in (0, None) and "--accept-clock" in told and "ahead_ms=" in told
    code, told = fsck("--accept-clock")
    assert code not in (0, None) and "goes with --repair" in told
    assert fsck("--repair", "--accept-clock")[0] in (0, None)
    assert fsck("--repair")[0] in (0, None)


def hide(world: World, until_ms: int) -> None:
    """Delete a key with all that is beside it, up to a time, as a clock did that was ahead."""
    for key in (X, X.lock, X.tag):
        world.store.write([Edit(key, None, until_ms)])


@pytest.mark.parametrize("hours", [0, 1, 25, 24 * 20])
def test_a_key_below_a_marker_in_the_future_can_be_committed_to(hours: int) -> None:
    world = World()
    until_ms = world.clock.wall_ms() + hours * HOUR_MS
    hide(world, until_ms)
    done = world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    assert world.cell(X) == Cell(b"1", done.timestamp)
    assert until_ms < done.timestamp <= until_ms + hours * HOUR_MS // 3 + 5_000
    assert world.engine.commit([Delete(X)]).complete
    assert world.engine.commit([Mutation(X, b"2")]).complete
    assert world.value(X) == b"2"


def test_a_lock_that_somebody_has_taken_above_the_marker_is_theirs() -> None:
    """Two clients find it hidden; the slower one must not free what the other has by then."""
    world = World()
    until_ms = world.clock.wall_ms() + HOUR_MS
    hide(world, until_ms)
    taken = Edit(X.lock, b"transaction.1700000000000." + b"0" * 32, until_ms + 1)
    assert clocks._put_free_locks(world.engine.context, [X.lock], until_ms - 1) == [X.lock]
    world.store.write([taken])
    assert clocks._put_free_locks(world.engine.context, [X.lock], until_ms + 9) == []
    assert world.cell(X.lock) == Cell(taken.value or b"", until_ms + 1)


def test_what_cannot_uncover_a_lock_says_why_and_until_when() -> None:
    """A marker of the far future, a store that chooses all timestamps, and a wrong clock."""
    far, narrow, wrong = World(), World(), Servers("six-phase", TEN_MINUTES)
    narrow.faults.features -= {"row_mutations"}
    for world, engine, days, said in (
        (far, far.engine, 365, r"hides what is written.*key=.*until_ms_or_later=17025"),
        (narrow, narrow.engine, 1, "this store cannot mend it"),
        (wrong, wrong.other, 1, "ahead_ms=600000"),
    ):
        hide(world, world.clock.wall_ms() + days * DAY_MS)
        with pytest.raises(AbortedError, match=said):
            engine.commit([Mutation(X, b"1")])
        assert world.cell(X.lock) is None


@both
def test_fsck_names_cells_from_the_future(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    until_ms = world.clock.wall_ms() + DAY_MS
    world.store.write([Edit(X, b"1", until_ms), Edit(X.tag, b"", until_ms - 1)])
    world.store.write([Edit(Y, b"1", world.clock.wall_ms() + POLICY.skew_ms)])
    context = world.engine.context
    found = [f for f in check(context, scan=[TABLE]) if f.kind is Kind.FUTURE_CELL]
    assert [(f.key, f.transaction, f.facts) for f in found] == [
        (X, None, {"until": until_ms, "cells": 2})
    ]
    assert repair(context, found[0]) == LeftAlone(Kind.FUTURE_CELL.remedy)
    world.clock.advance(DAY_MS)
    assert not [f for f in check(context, scan=[TABLE]) if f.kind is Kind.FUTURE_CELL]


@pytest.mark.parametrize("salt_buckets", [1, 4])
@pytest.mark.parametrize("tables", [[], [b"txn"]])
def test_the_doctor_names_transactions_and_cells_from_the_future(
    tables: list[bytes], salt_buckets: int
) -> None:
    world = World(salt_buckets=salt_buckets)
    world.clock.advance(HOUR_MS)
    done = world.engine.commit([Mutation(X, b"1")])
    world.clock.set_wall_ms(world.clock.wall_ms() - HOUR_MS)
    given = [*tables, TABLE]
    told = [d for d in examine(world.engine.context, given) if d.verdict is not Verdict.FINE]
    about = {d.about: d for d in told if d.verdict is Verdict.CAUTION}
    assert len(about) == len(told)
    assert about.keys() == {"table txn", "table data"}
    assert escape(done.transaction) in about["table txn"].seen
    assert "until 2023-11-14 23:13:20" in about["table data"].seen
    assert "fsck --scan data" in about["table data"].mend


def test_the_doctor_tells_of_a_clock_that_was_set() -> None:
    world = Embedded()
    world.start().commit([Mutation(X, b"1")])
    world.machine.now_ms += HOUR_MS
    (told,) = (d for d in examine(world.start().context) if d.verdict is not Verdict.FINE)
    assert told.about == "clock" and "3600000 ms" in told.seen and "--accept-clock" in told.mend
