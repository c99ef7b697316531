"""A transaction row with a valid checksum, and content that no client of ours has written.

Each command and each read names it as damaged, leaves it alone, and goes on with the others.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from recovery.commands import main
from tests.console.served import TOKEN, serve_here
from tests.console.visits import ask
from tests.unit.worlds import TABLE, World, X, Y, stopped_at
from txn.assertions import MAX_DEPTH
from txn.clock import SystemClock
from txn.errors import CorruptRowError, TxnError
from txn.model import Edit, Mutation
from txn.protocol import codec
from txn.protocol.codec import decode_buffer
from txn.protocol.row import column, new_row_key
from txn.protocol.statuses import Status
from txn.stores import open_store

pytestmark = pytest.mark.fast
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
    """The world of the commands' store."""
    uri = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("TXN_STORE", uri)
    monkeypatch.setattr(World, "opened", lambda: (open_store(uri), SystemClock()))
    return World()


def craft(world: World, number: int, content: list[Any]) -> str:
    """Write a crafted row, which is decided and holds the lock of Z."""
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
    for row_key in crafted:
        assert run(monkeypatch, "show", row_key) == 0
        assert "unknown shape" in capsys.readouterr().out
        assert run(monkeypatch, "purge", row_key, "--yes") == 0


def test_the_console_shows_them(world: World) -> None:
    row_key = craft(world, 7, CRAFTED["not"])
    with serve_here(world.engine.context) as url:
        for page in ("s", "s.csv", "s.json", f"?id={row_key}"):
            answer = ask(f"{url}/transaction{page}", headers={"Authorization": f"Bearer {TOKEN}"})
            assert answer.status == 200 and "unknown shape" in answer.body, page


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
