"""What each kind of writer does, and writes down of it, on a store in memory."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.chaos import client, search
from tests.chaos.bank import POLICY, TABLE, Money, found_bank
from tests.chaos.crew import PARTS_WRITER, SNAPSHOTS, WRITERS
from tests.chaos.history import History, Log, load
from tests.chaos.verdict import judge
from txn import Engine, connect
from txn.model import Check
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.stores import open_store
from txn.testing.faulty import Call, Fault, FaultyStore, Reply

pytestmark = pytest.mark.fast

ROUNDS = 4
HASTY = replace(POLICY, store_patience_ms=1, lock_ttl_ms=200)


def recorded(folder: Path, engine: Engine, role: str, rounds: int = ROUNDS) -> History:
    """The history of a writer that has done its work some times."""
    log, rng = Log(folder / "w0.1.jsonl"), Random(1)
    for number in range(rounds):
        client.ROLES[role](engine, f"w0.1-{number}", rng, log)
    return load(folder)


def violations(engine: Engine, history: History) -> list[str]:
    """What the verdict has against it, once the store has come to rest."""
    return [*search.bring_to_rest(engine), *judge(history, search.find_ending(engine, history))]


@pytest.mark.parametrize("role", [*WRITERS, PARTS_WRITER])
def test_every_kind_of_writer_leaves_a_history_that_holds(tmp_path: Path, role: str) -> None:
    """A verdict on real faults is worth nothing if it condemns a writer without any."""
    with connect(f"memory://{uuid.uuid4().hex}", table=TABLE, policy=POLICY) as engine:
        found_bank(engine)
        history = recorded(tmp_path, engine, role)
        assert {each.outcome for each in history.transfers()} <= {"committed", "aborted"}
        assert sum(each.is_committed for each in history.transfers()) >= ROUNDS
        assert violations(engine, history) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_snapshots_of_many_readers_are_judged(tmp_path: Path, protocol: ProtocolName) -> None:
    """As atomic reads that were true by the time at which their instant was found."""
    uri = f"memory://{uuid.uuid4().hex}"
    with connect(uri, table=TABLE, policy=POLICY, protocol=protocol) as engine:
        found_bank(engine)
        log, rng = Log(tmp_path / "s0.1.jsonl"), Random(1)
        for number in range(ROUNDS):
            client.transfer(engine, f"w0.1-{number}", rng, log)
            client.read_snapshot(engine, f"s0.1-{number}", rng, log)
        history = load(tmp_path)
        assert sum(each.name.startswith(SNAPSHOTS) for each in history.reads()) == ROUNDS
        assert violations(engine, history) == []
        last = history.operations["s0.1-3"]
        last.reads = dict.fromkeys(last.reads, Money(1, "nobody", 1))
        assert any("s0.1-3" in each for each in violations(engine, history))


def lose_decisions(applied: bool) -> Callable[[Call], Fault]:
    """Answer no decision, whether it was taken or not."""
    lost = Fault(applied=None if applied else frozenset(), reply=Reply.MAYBE_APPLIED)

    def plan(call: Call) -> Fault:
        decides = any(
            isinstance(item, Check)
            and any(value == Status.ASSERTED.value for _, value in item.puts)
            for item in call.items
        )
        return lost if decides else Fault()

    return plan


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("role", [*WRITERS, PARTS_WRITER])
def test_an_unknown_outcome_of_a_batch_is_settled(
    tmp_path: Path, role: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a single transfer is: by its receipt, and by its transaction row."""
    monkeypatch.setattr(client, "AFTER_FAILURE_S", 0)
    monkeypatch.setattr(search, "PAUSE_S", 0)
    store = FaultyStore(open_store("memory://"))
    with Engine(store, table=TABLE, policy=HASTY) as engine:
        found_bank(engine)
        store.plan = lose_decisions(applied)
        history = recorded(tmp_path, engine, role, rounds=1)
        store.plan = lambda call: Fault()
        unknown = [each for each in history.transfers() if each.outcome == "unknown"]
        assert unknown and all(each.transaction for each in unknown)
        assert violations(engine, history) == []
        assert {each.resolved for each in unknown} == {"committed" if applied else "aborted"}
