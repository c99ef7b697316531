"""Rows and tokens that a person purges, a database that is converted, and the commands for it."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from recovery import LeftAlone, NothingToDo, Repaired, purge_row
from recovery.commands import main
from recovery.scan import whole_row
from tests.unit.worlds import World, X, stopped_at
from txn import connect
from txn.client.parts import PartsClient
from txn.clock import SystemClock
from txn.model import Edit, Family, Mutation, Row
from txn.protocol.codec import make_digest
from txn.protocol.protocols import protocol_key
from txn.protocol.row import column
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.request import Outcome, Request
from txn.stores import open_store
from txn.testing.faulty import Call, Fault


def row_of(world: World, row_key: bytes) -> Row:
    found = whole_row(world.engine.context, row_key)
    assert found is not None
    return found


def test_a_finished_row_goes() -> None:
    world = World()
    done = world.engine.commit([Mutation(X, b"1")])
    purged = purge_row(world.engine.context, row_of(world, done.transaction))
    assert (purged, world.rows()) == (Repaired("deleted"), [])
    assert world.engine.outcome(done.transaction) is Outcome.UNKNOWN
    assert world.value(X) == b"1"


@pytest.mark.parametrize(
    "status", [Status.WRITTEN, Status.LOCKED, Status.ASSERTED, Status.CLEANING]
)
def test_what_fsck_could_end_is_refused_unless_asked_for(status: Status) -> None:
    world = World()
    stopped_at(world, status)
    (row,) = world.rows()
    seen = row_of(world, row.row_key)
    assert isinstance(purge_row(world.engine.context, seen), LeftAlone)
    assert row_of(world, row.row_key) == seen
    assert purge_row(world.engine.context, seen, unfinished=True) == Repaired("deleted")
    assert world.rows() == []


def test_a_row_that_moved_on_stays() -> None:
    world = World()
    row_key = stopped_at(world, Status.ASSERTED)
    seen = row_of(world, row_key)
    world.clock.advance(world.policy.lock_ttl_ms)
    world.client(seed=3).commit([Mutation(X, b"3")])
    assert isinstance(purge_row(world.engine.context, seen, unfinished=True), NothingToDo)
    assert world.engine.outcome(row_key) is Outcome.COMMITTED


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_owner_that_decides_during_the_purge_keeps_its_row(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    owner = PartsClient(world.client(seed=2))
    transaction = owner.begin()
    newest = owner.write(transaction, 0, 0, [Mutation(X, b"2")])
    seen = row_of(world, transaction)

    def plan(call: Call) -> Fault:
        if call.method in ("write", "check_and_put"):
            owner.commit(transaction, [1], newest, ack="decided")
        return Fault()

    world.faults.plan = plan
    assert isinstance(purge_row(world.engine.context, seen, unfinished=True), NothingToDo)
    assert world.client(seed=3).read([X])[X].value == b"2"  # type: ignore[union-attr]


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    code: object
    out: str
    error: str

    @property
    def document(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        return found


Run = Callable[..., Done]


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def run(uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Done:
        monkeypatch.setenv("TXN_STORE", uri)
        monkeypatch.setattr(sys, "argv", ["txn", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def world(uri: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """Clients of the store that the commands are told of."""
    monkeypatch.setattr(World, "opened", lambda: (open_store(uri), SystemClock()))
    return World()


def test_purge_removes_what_a_person_has_decided_about(world: World, run: Run) -> None:
    row_key = stopped_at(world, Status.ASSERTED)
    refused = run("purge", row_key.decode(), "--yes")
    assert refused.code == 1
    assert "fsck --repair can still finish" in refused.error
    buffer = column(b"txn", row_key, b"buffer")
    world.store.write([Edit(buffer, b"?", world.clock.wall_ms() + 1)])
    asked = run("purge", row_key.decode())
    assert asked.code == 2
    for told in ("it may be committed", "be sure that its client has ended", "say --yes"):
        assert told in asked.error.lower()
    done = run("purge", row_key.decode()[-6:], "--yes", "--json").document
    assert (done["transaction"], done["state"]) == (row_key.decode(), "unreadable")
    assert (done["result"], done["why"]) == ("repaired", "deleted")
    assert "orphan-lock" in run("fsck", "--repair", "--scan", "data", "--grace", "0s").out
    (poisoned,) = world.rows()  # before its lock was freed, so that a late request decides nothing
    assert (poisoned.row_key, poisoned.is_poisoned) == (row_key, True)
    assert run("purge", row_key.decode(), "--yes").code == 0
    assert run("purge", row_key.decode(), "--yes").code == 2
    assert world.rows() == []


def test_a_token_is_forgotten_when_its_time_has_come_or_by_hand(
    world: World, run: Run, tmp_path: Path
) -> None:
    document = {"mutations": [{"put": "data/x/d:x", "value": "1"}], "once": "job/7"}
    document |= {"once_content": "x is 1"}
    plain, promised = tmp_path / "plain", tmp_path / "promised"
    plain.write_text(json.dumps(document))
    promised.write_text(json.dumps(document | {"once_retention_ms": 1}))
    assert run("commit", str(promised)).code == 0
    assert "had been committed before" in run("commit", str(promised)).out
    world.clock.sleep_ms(5)
    assert "expired-marker" in run("fsck", "--repair", "--retention", "1ms", "--yes").out
    again = run("commit", str(plain), "--json").document
    assert again["repeated"] is False
    digest = make_digest(Request((), once_content=b"x is 1")) or b""
    shown = f"job/7, kept for ever, digest {digest.decode()}"
    assert shown in " ".join(run("show", again["transaction"]).out.split())
    facts = run("show", again["transaction"], "--json").document
    assert (facts["once_digest"], facts["has_answer"]) == (digest.decode(), False)
    asked = run("purge", "--once", "job/7")
    assert asked.code == 2 and "kept for ever" in asked.error
    done = run("purge", "--once", "job/7", "--yes", "--json").document
    assert (done["once"], done["transaction"]) == ("job/7", again["transaction"])
    assert (done["result"], world.value(X)) == ("repaired", b"1")


def test_tables_are_listed_with_their_databases(uri: str, run: Run) -> None:
    """A newcomer to a store wants to know what may be written to."""
    with connect(uri) as engine:
        engine.ensure_table("accounts", ["d", "e"])
    with connect(uri, transactions="other", protocol="fenced") as engine:
        engine.ensure_table("stock", ["d"])
    open_store(uri).ensure_table(b"cache", {b"d": Family(ttl_ms=60_000)})
    lines = run("table", "ls", "--json").out.splitlines()
    documents = {told["table"]: told for told in map(json.loads, lines)}
    assert list(documents) == ["accounts", "cache", "other", "stock", "txn"]
    assert documents["accounts"] == {
        "table": "accounts",
        "families": ["d", "e"],
        "databases": ["txn"],
        "protocol": "six-phase",
        "refusals": [],
        "endpoint": None,
    }
    assert "TTL" in documents["cache"]["refusals"][0]
    assert run("table", "endpoint", "cache").out == "table cache: this store needs no endpoint\n"
    assert run("table", "endpoint", "absent").code == 2


@pytest.mark.parametrize("wrong", ["", "transaction --once token", "--once token", "transaction"])
def test_what_is_not_there_cannot_be_purged(world: World, run: Run, wrong: str) -> None:
    assert run("purge", *wrong.split(), "--yes").code == 2


def test_a_database_of_an_earlier_version_is_made_current_by_a_person(
    world: World, run: Run, tmp_path: Path
) -> None:
    row_key = stopped_at(world, Status.ASSERTED).decode()
    name = protocol_key(b"txn")
    world.store.write([Edit(name, b"six-phase", world.clock.wall_ms() + 1)])
    world.clock.sleep_ms(2)
    request = tmp_path / "request"
    request.write_text(json.dumps({"mutations": [{"put": "data/y/d:x", "value": "1"}]}))

    refused = run("commit", str(request))
    assert refused.code != 0
    assert "earlier version" in refused.error and "txn convert six-phase" in refused.error
    assert row_key in run("ls").out  # what only reads opens it
    assert run("fsck", "--grace", "0s").code == 1 and world.value(name) == b"six-phase"

    asked = run("convert", "six-phase")
    assert asked.code == 2
    assert "one that stays connected does not notice" in asked.error and "--yes" in asked.error
    assert world.value(name) == b"six-phase"
    assert "rolled forward" in run("fsck", "--repair", "--grace", "0s").out
    assert world.value(X) == b"2"

    done = run("convert", "six-phase", "--yes", "--json").document
    assert done == {"found": "six-phase", "protocol": "six-phase", "deleted": 0, "obstacles": []}
    assert world.value(name) == b"six-phase/2"
    assert run("commit", str(request)).code == 0
    assert run("convert", "six-phase").code == 0  # there is nothing to be asked any more
