"""The table of statuses, and rows that no client of ours has written: of odd status or content."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from recovery import LeftAlone, check, repair
from recovery.commands import main
from tests.unit.worlds import TABLE, World, X, Y, before, is_step, steps_to, stopped_at
from txn.assertions import MAX_DEPTH
from txn.clock import SystemClock
from txn.errors import CommitOutcomeUnknown, ConflictError, CorruptRowError, DeadlineError, TxnError
from txn.model import Check, Edit, Mutation
from txn.protocol import codec
from txn.protocol.codec import decode_buffer
from txn.protocol.row import RowState, column, new_row_key, status_key
from txn.protocol.statuses import (
    BEGINNINGS,
    COMMITTED,
    FINISHED,
    PROTOCOLS,
    SIX_PHASE,
    STEPS,
    UNDECIDED,
    IllegalStepError,
    Rules,
    Status,
    check_step,
)
from txn.protocol.transaction import Transaction
from txn.request import Committed, Request
from txn.spans import Span
from txn.stores import open_store
from txn.testing.faulty import Call


def test_every_status_leads_to_an_end() -> None:
    for status in Status:
        reached = {status}
        for _ in Status:
            reached |= {new for old in reached for new in STEPS[old]}
        assert reached & FINISHED


def test_a_committed_row_never_aborts_and_an_aborted_one_never_commits() -> None:
    for status in Status:
        for new in STEPS[status]:
            if status not in UNDECIDED:
                assert (status in COMMITTED) is (new in COMMITTED)


def test_only_a_locked_row_can_be_decided() -> None:
    """Deciding without all locks is deciding without isolation. A part only follows."""
    deciding = {old for old in Status if Status.ASSERTED in STEPS[old]}
    assert deciding == {Status.LOCKED, Status.PART}


def test_a_step_that_the_table_does_not_have_is_refused() -> None:
    """Not by an assert, which a switch of the interpreter takes out."""
    for old in (None, *Status):
        allowed = BEGINNINGS if old is None else STEPS[old]
        for new in Status:
            if new in allowed:
                check_step(STEPS, old, new)
            else:
                with pytest.raises(IllegalStepError, match=str(new)):
                    check_step(STEPS, old, new)


@pytest.mark.parametrize("rules", PROTOCOLS.values(), ids=PROTOCOLS)
def test_what_a_crash_must_not_undo_is_never_deferred(rules: Rules) -> None:
    durable = {Status.ASSERTED, Status.PUT, Status.ABORTING, Status.ABORTED, Status.PART}
    assert not rules.deferred & durable
    assert rules.deferred >= {Status.WRITTEN, Status.COMPLETE}


def test_only_an_owner_defers_what_comes_before_the_decision() -> None:
    assert not Transaction(b"transaction.1." + b"0" * 32, Request(())).may_defer(Status.WRITTEN)
    world = World()
    plain = world.begun(Mutation(X, b"1"))
    assert plain.may_defer(Status.WRITTEN)
    plain.parts = ()
    assert not plain.may_defer(Status.WRITTEN)
    scanned = world.begun(Mutation(X, b"1"))
    scanned.spans = (Span(TABLE),)
    assert not scanned.may_defer(Status.WRITTEN)


def test_the_end_of_a_row_without_times_is_not_deferred() -> None:
    t = Transaction(b"transaction.1." + b"0" * 32, Request(()))
    assert not t.may_defer(Status.COMPLETE)
    assert replace(t, is_dated=True).may_defer(Status.COMPLETE)


@pytest.mark.parametrize("rules", PROTOCOLS.values(), ids=PROTOCOLS)
def test_poison_always_compares(rules: Rules) -> None:
    """Put without a comparison it would abort a row that has arrived, and perhaps decided."""
    fenced = rules is not SIX_PHASE
    assert (None, Status.ABORTED) not in rules.unconditional
    assert ((Status.ABORTING, Status.ABORTED) in rules.unconditional) is fenced
    assert ((None, Status.WRITTEN) in rules.unconditional) is fenced
    assert (Status.WRITTEN, Status.ASSERTED) not in rules.unconditional
    for old, new in rules.unconditional:
        check_step(rules.steps, old, new)


def test_a_transaction_without_a_plan_has_not_decided() -> None:
    with pytest.raises(IllegalStepError, match="not decided"):
        _ = Transaction(b"row", Request(())).decided


REQUESTS = [Request((Mutation(key, b"1"),)) for key in (X, Y)]


def spoil(world: World, row_key: bytes) -> None:
    """Give a row a status that nobody knows: of a newer version, or by mistake."""
    world.store.write([Edit(status_key(b"txn", row_key), b"9-NEW", world.clock.wall_ms() + 1)])


def commit_spoiled(status: Status) -> tuple[World, Sequence[object], bytes]:
    """Commit two transactions, of which the first one's row is spoiled before it gets there."""
    world = World()
    spoiled: list[bytes] = []

    def steps(call: Call) -> bool:
        checks = [item for item in call.items if isinstance(item, Check)]
        spoiled[:] = spoiled or [check.key.row for check in checks[:1] if is_step(check, status)]
        return bool(spoiled)

    before(world, steps, lambda: spoil(world, spoiled[0]))
    return world, world.engine.commit_many(REQUESTS), spoiled[0]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.WRITTEN, CorruptRowError),
        (Status.LOCKED, CorruptRowError),
        (Status.ASSERTED, CommitOutcomeUnknown),
    ],
)
def test_one_bad_row_of_a_batch_fails_its_own_transaction(
    status: Status, error: type[Exception]
) -> None:
    world, results, bad = commit_spoiled(status)
    assert type(results[0]) is error
    assert bad in str(results[0]).encode() and "9-NEW" in str(results[0].__cause__ or results[0])
    assert isinstance(results[1], Committed) and results[1].complete
    assert world.value(Y) == b"1"
    if status is not Status.WRITTEN:
        assert world.holder(X) == bad  # which may be committed: nobody frees its locks


@pytest.mark.parametrize("status", [Status.PUT, Status.CLEANING, Status.COMPLETE])
def test_a_row_that_goes_bad_after_the_decision_is_committed(status: Status) -> None:
    world, (first, second), bad = commit_spoiled(status)
    assert isinstance(first, Committed) and not first.complete
    assert isinstance(second, Committed) and second.complete
    is_put = status is not Status.PUT
    assert (world.holder(X), world.holder(Y)) == (b"" if is_put else bad, b"")
    assert (world.value(X), world.value(X.tag)) == (b"1", b"")
    (row,) = (row for row in world.rows() if row.row_key == bad)
    assert row.state is RowState.UNREADABLE


def spoil_as_it_is_ended(world: World, holder: bytes, status: Status) -> None:
    step = Status.ABORTING if status is Status.LOCKED else Status.PUT
    before(world, steps_to(step), lambda: spoil(world, holder), times=99)


@pytest.mark.parametrize("status", [Status.LOCKED, Status.ASSERTED])
def test_a_holder_whose_row_goes_bad_as_it_is_ended_is_in_the_way(status: Status) -> None:
    world = World()
    holder = stopped_at(world, status)
    spoil_as_it_is_ended(world, holder, status)
    with pytest.raises((ConflictError, DeadlineError)) as caught:
        world.client(world.faults, seed=2).commit([Mutation(X, b"3")])
    assert (caught.value.facts["key"], caught.value.facts["holder"]) == (X, holder)
    assert "9-NEW" in str(caught.value)
    assert isinstance(caught.value.__cause__, CorruptRowError)
    assert world.holder(X) == holder


@pytest.mark.parametrize("status", [Status.LOCKED, Status.ASSERTED])
def test_fsck_leaves_a_row_that_goes_bad_as_it_is_ended(status: Status) -> None:
    world = World()
    holder = stopped_at(world, status)
    (finding,) = check(world.engine.context, grace_ms=0)
    spoil_as_it_is_ended(world, holder, status)
    result = repair(world.engine.context, finding)
    assert isinstance(result, LeftAlone) and "9-NEW" in result.why
    assert world.holder(X) == holder


Z = X._replace(row=b"zoe")
LEAF = ["some", list(Z)]


def nest(wrap: Callable[[Any], Any], depth: int, leaf: Any = LEAF) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


def body(assertion: Any = LEAF, value: Any = b"v", labels: Any = None) -> list[Any]:
    return [[[list(Z), value]], [assertion], None, 30_000, labels or {}]


CRAFTED = {
    "not": body(nest(lambda inner: ["not", inner], 990)),
    "and": body(nest(lambda inner: ["and", [LEAF, inner]], 480)),
    "or": body(nest(lambda inner: ["or", [inner, LEAF]], 480)),
    "one too many": body(nest(lambda inner: ["not", inner], MAX_DEPTH)),
    "an unknown name": body(nest(lambda inner: [inner], 900)),
    "a value": body(value=nest(lambda inner: [inner], 900, b"")),
    "labels": body(labels={"a": nest(lambda inner: {"a": inner}, 900, b"")}),
    "labels of bytes": body(labels={b"a": b"b"}),
    "a version of text": body(["version", list(Z), "soon"]),
}


def test_an_assertion_as_deep_as_requests_may_be_is_read() -> None:
    """The limit of decoding is the limit of requests: less would lose decided transactions."""
    deep = codec._frame(body(nest(lambda inner: ["not", inner], MAX_DEPTH - 1)))
    assert decode_buffer(deep).request.assertions


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    uri = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("TXN_STORE", uri)
    monkeypatch.setattr(World, "opened", lambda: (open_store(uri), SystemClock()))
    return World()


def craft(world: World, number: int, content: list[Any]) -> str:
    at = world.engine.context.clock.wall_ms() - 600_000
    row, status = new_row_key(at, number, database=b"txn"), Status.ASSERTED
    cells = {b"status": status.encoded, b"buffer": codec._frame(content), status.at: b""}
    world.store.write([Edit(column(b"txn", row, name), cells[name], at) for name in cells])
    world.store.write([Edit(Z.lock, row, at + 600_005)])
    return row.decode()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["txn", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_commands_name_each_row_and_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crafted = [craft(world, *each) for each in enumerate(CRAFTED.values(), 0xABCDEF)]
    stopped_at(world, Status.LOCKED)
    convert = f"convert fenced --scan {TABLE.decode()}"
    for words in ("ls", "ls --json", "fsck --grace 0s", "fsck --grace 0s --repair --json", convert):
        assert run(monkeypatch, *words.split()) == int(not words.startswith("ls")), words
        out = "".join(capsys.readouterr())
        assert words == convert or all(row_key in out for row_key in crafted), words
        assert out.count("unknown shape") == len(crafted) or not words.startswith("ls"), words
    assert world.holder(X) == b""  # the last repair has gone on to it
    for row_key in crafted[::3]:
        assert run(monkeypatch, "show", row_key) == 0
        assert "unknown shape" in capsys.readouterr().out
        assert run(monkeypatch, "purge", row_key, "--yes") == 0


@pytest.mark.parametrize("content", CRAFTED.values(), ids=CRAFTED)
def test_reads_and_commits_of_its_keys_are_refused(content: list[Any]) -> None:
    world = World()
    world.engine.commit([Mutation(Z, b"old"), Mutation(Y, b"old")])
    row_key, engine = craft(world, 7, content), world.client(seed=5)
    for call in (lambda: engine.read([Z]), lambda: list(engine.scan(TABLE))):
        with pytest.raises(CorruptRowError, match=row_key):
            call()
    with pytest.raises(TxnError, match=row_key):
        engine.commit([Mutation(Z, b"new")])
    engine.commit([Mutation(Y, b"new")])
    assert world.value(Y) == b"new"
