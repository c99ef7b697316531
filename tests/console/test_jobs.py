"""Checks and repairs in the background: one at a time, bounded, and told of whatever ends them.

Here the console runs in this process, over a store that stands still when a test says so.
"""

import random
import threading
from collections.abc import Iterator

import pytest

from recovery.console import jobs as jobs_module
from recovery.console.jobs import FsckReport, Jobs, KeptFinding
from recovery.findings import RETENTION_MS, Finding, Kind, LeftAlone, NothingToDo, Repaired
from tests.console.crashing import crash_engine
from tests.console.served import TOKEN, serve_here
from tests.console.visits import ask, post, wait_for
from txn import Engine, Key, Mutation
from txn.clock import SystemClock
from txn.errors import InvalidRequestError
from txn.events import silent
from txn.policy import Policy
from txn.protocol.context import Context
from txn.protocol.row import new_row_key
from txn.protocol.statuses import SIX_PHASE, Status
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

BEARER = {"Authorization": f"Bearer {TOKEN}"}
NOT_APPLIED = Fault(frozenset(), Reply.NOT_APPLIED)
PATIENCE_S = 60


class StandingStore(FaultyStore):
    """A store whose scans wait until the test lets them go on; then they do what `fault` says."""

    def __init__(self) -> None:
        super().__init__(open_store("memory://"), self._wait)
        self.let = threading.Event()
        self.let.set()
        self.entered = threading.Event()
        self.fault = Fault()

    def _wait(self, call: Call) -> Fault:
        if call.method != "scan":
            return Fault()
        self.entered.set()
        assert self.let.wait(PATIENCE_S)
        return self.fault

    def stand(self) -> None:
        self.let.clear()
        self.entered.clear()


@pytest.fixture
def store() -> StandingStore:
    store = StandingStore()
    engine = Engine(store)
    engine.ensure_table("stock", ["d"])
    engine.commit([Mutation(Key("apple", "d", "count", "stock"), "7")])
    return store


@pytest.fixture
def context(store: StandingStore) -> Context:
    clock, policy = SystemClock(), Policy(store_patience_ms=1)
    return Context(store, b"txn", clock, random.Random(1), policy, silent, SIX_PHASE)


@pytest.fixture
def jobs(context: Context, store: StandingStore) -> Iterator[Jobs]:
    jobs = Jobs(context)
    yield jobs
    store.let.set()
    jobs.close()


def finish(jobs: Jobs) -> FsckReport:
    """Return the report once nothing is under way."""
    jobs.wait(PATIENCE_S)
    assert not jobs.is_running
    assert jobs.report is not None
    return jobs.report


def run_check(jobs: Jobs, grace_ms: int = 0) -> FsckReport:
    jobs.start(grace_ms, ())
    return finish(jobs)


def test_a_second_person_is_told_that_a_check_is_under_way_and_may_cancel_it(
    store: StandingStore, context: Context
) -> None:
    """One job at a time: of two repairs at once each would show half of what was done."""
    with serve_here(context) as url:
        store.stand()
        assert post(f"{url}/fsck", {}).status == 303
        assert store.entered.wait(PATIENCE_S)
        under_way = ask(f"{url}/fsck").body
        assert "Checking" in under_way
        assert 'max="100" value="0"></progress> about 0 %' in under_way
        second = post(f"{url}/fsck", {})
        assert second.status == 409
        assert "nothing was started: a check is already running" in second.body
        assert post(f"{url}/fsck/repair", {"check": "1"}, BEARER).status == 409
        assert ask(f"{url}/fsck/repair?check=1").status == 409
        store.let.set()
        wait_for(f"{url}/fsck", "no problems found")
        store.stand()
        post(f"{url}/fsck", {"tables": "stock"})
        assert store.entered.wait(PATIENCE_S)
        assert post(f"{url}/fsck/cancel", {}).status == 303
        store.let.set()
        ended = wait_for(f"{url}/fsck", "Stopped early: cancelled.")
        assert "no problems found" not in ended.body


def test_a_repair_is_cancelled_only_by_those_who_may_repair(
    store: StandingStore, context: Context
) -> None:
    crash_engine(store, Status.LOCKED, [b"left"])
    with serve_here(context) as url:
        post(f"{url}/fsck", {"grace": "0s"})
        wait_for(f"{url}/fsck", "Repair all")
        store.stand()
        assert post(f"{url}/fsck/repair", {"check": "1"}, BEARER).status == 303
        assert store.entered.wait(PATIENCE_S)
        assert post(f"{url}/fsck/cancel", {}).status == 401
        assert post(f"{url}/fsck/cancel", {}, BEARER).status == 303
        store.let.set()
        wait_for(f"{url}/fsck", "Stopped early: cancelled.")


def test_an_error_ends_a_check_and_is_shown(
    store: StandingStore,
    jobs: Jobs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.fault = NOT_APPLIED
    failed = run_check(jobs)
    assert failed.trouble and failed.ended_ms is not None
    store.fault = Fault()
    assert run_check(jobs).trouble is None

    def fail(*_: object, **__: object) -> Iterator[Finding]:
        raise ZeroDivisionError

    monkeypatch.setattr(jobs_module, "check", fail)
    assert run_check(jobs).trouble == "failed: see the log of the console"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ([{"value": b"x"}] * 1_200, jobs_module.MOST_KEPT),
        ([{"value": b"x" * 6_000_000}] * 4, 2),
        ([{"cause": "x" * 6_000_000}] * 4, 2),
        # What was not kept takes no room.
        ([{"value": b"x" * 17_000_000}, {"value": b"x"}, {"value": b"x"}], 2),
    ],
)
def test_what_is_kept_of_a_check_is_bounded(
    facts: list[dict[str, object]], kept: int, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All findings are counted, and the first are listed."""
    found = (Finding(Kind.FOREIGN_CELL, facts=each) for each in facts)
    monkeypatch.setattr(jobs_module, "check", lambda *_, **__: found)
    report = run_check(jobs)
    assert (report.tally.found, len(report.kept)) == (len(facts), kept)


def test_a_repair_of_all_compacts_what_was_deleted(
    jobs: Jobs, store: StandingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command does: else the room of deleted rows would never be given back."""
    asked: list[tuple[bytes, int]] = []
    monkeypatch.setattr(store, "compact", lambda table, before_ms: asked.append((table, before_ms)))
    began_ms = SystemClock().wall_ms()
    jobs.start(0, (b"stock",), repairs=True)
    finish(jobs)
    assert [table for table, _ in asked] == [b"txn", b"stock"]
    assert all(0 <= at - (began_ms - RETENTION_MS) < 60_000 for _, at in asked)
    jobs.start(0, (b"stock",))
    finish(jobs)
    assert len(asked) == 2


def test_a_repair_is_of_the_last_check_alone(jobs: Jobs) -> None:
    report = run_check(jobs)
    for number in (0, 2, 99):
        with pytest.raises(InvalidRequestError, match="check again"):
            jobs.find_report(number)
    assert jobs.find_report(1) is report


def test_marked_findings_are_repaired_until_the_store_fails(
    store: StandingStore, context: Context
) -> None:
    for row in (b"one", b"two", b"three"):
        crash_engine(store, Status.LOCKED, [row])
    jobs = Jobs(context)
    report = run_check(jobs)
    ended_ms, marked = report.ended_ms, report.kept[:2]
    two = marked[1].finding.transaction

    def fail(call: Call) -> Fault:
        is_two = two is not None and any(two in repr(item).encode() for item in call.items)
        return NOT_APPLIED if is_two else Fault()

    for plan, results in (
        (fail, [Repaired, type(None)]),
        (lambda _: Fault(), [NothingToDo, Repaired]),
    ):
        store.plan = plan
        jobs.start_some(marked)
        finish(jobs)
        assert [type(each.result) for each in marked] == results
        assert [each.trouble is None for each in marked] == [
            each is not type(None) for each in results
        ]
    assert jobs.history[0].outcome == "it is finished, rolled back"
    assert jobs.find_report(1) is report
    assert (report.kept[2].result, report.ended_ms, report.trouble) == (None, ended_ms, None)
    jobs.close()


def test_a_transaction_is_judged_before_its_repair(store: StandingStore, jobs: Jobs) -> None:
    row_key = crash_engine(store, Status.LOCKED, [b"one"])
    (kept,) = run_check(jobs).kept
    for given in (row_key, new_row_key(1, 1)):
        with pytest.raises(InvalidRequestError, match="there is nothing to repair"):
            jobs.judge_transactions([given])
    assert jobs.find_repair(row_key) is None
    jobs.start_some([kept], "10.0.0.7")
    jobs.wait(PATIENCE_S)
    found = jobs.find_repair(row_key)
    assert found is jobs.history[0]
    assert (found.outcome, found.tally.repaired) == ("rolled back", 1)
    assert KeptFinding(0, kept.finding, Repaired("done")).is_repaired
    assert KeptFinding(0, kept.finding, LeftAlone("not ours")).is_left
    assert KeptFinding(0, kept.finding, None).is_left
