"""What clients leave that crash, of each kind that fsck finds, in a store that others can open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing

from txn import Engine, Key, Mutation, Some
from txn.assertions import Assertion
from txn.model import Check, Edit
from txn.protocol.row import column
from txn.protocol.statuses import ProtocolName, Status
from txn.stores import open_store
from txn.stores.base import Store
from txn.testing.faulty import Call, Crash, Fault, FaultyStore, Reply

TABLE = "data"
FINISHED = 12
STRANGER = b"transaction.1700000000000." + b"f" * 32
STATUSES = {
    "six-phase": (Status.WRITTEN, Status.LOCKED, Status.ASSERTED, Status.PUT, Status.CLEANING),
    "fenced": (Status.WRITTEN, Status.ASSERTED),
}


def leave_crashes(uri: str, protocol: ProtocolName) -> None:
    """Leave finished transactions, one that stopped at each status, one that was aborting, one
    whose row does not decode, a lock of nobody, and a value that was written past the protocol."""
    with closing(open_store(uri)) as store:
        engine = Engine(store, table=TABLE, protocol=protocol)
        engine.ensure_table(TABLE, ["d"])
        for number in range(FINISHED):
            engine.commit([Mutation(key_of(f"done{number:02}"), b"1")], once=f"token{number}")
        for status in STATUSES[protocol]:
            crash_at(store, status, f"{status}")
        if protocol == "six-phase":  # the other one reads before it writes a row
            crash_at(store, Status.ABORTING, "aborting", [Some(key_of("absent"))])
        damaged = crash_at(store, Status.ASSERTED, "damaged")
        buffer = column(b"txn", damaged, b"buffer")
        cell = store.read([buffer])[buffer]
        assert cell is not None
        store.write([Edit(buffer, b"junk", cell.timestamp)])
        rules = engine.context.rules
        lock = rules.lock_of(key_of("orphan"))
        held = b"1@" + STRANGER if rules.locks_rows else STRANGER
        store.write([Edit(lock, held, 1_700_000_000_000)])
        store.write([Edit(key_of("done00"), b"strange", engine.context.clock.wall_ms() + 1)])


def crash_at(store: Store, status: Status, row: str, assertions: Sequence[Assertion] = ()) -> bytes:
    """Let a client die right after its row reached this status; return the row key."""

    def plan(call: Call) -> Fault:
        written = any(status.value in _values(item) for item in call.items)
        return Fault(reply=Reply.CRASH) if written else Fault()

    mutations = [Mutation(key_of(row + end), b"2") for end in ("", "-too")]
    before = {found.row for found in store.scan(b"txn")}
    try:
        Engine(FaultyStore(store, plan), table=TABLE).commit(mutations, assertions)
    except Crash:
        (left,) = {found.row for found in store.scan(b"txn")} - before
        return left
    raise AssertionError(f"nobody came to {status}")


def key_of(row: str) -> Key:
    return Key(row, "d", "v", TABLE)


def _values(item: object) -> Iterable[bytes | None]:
    """What an item of a call writes."""
    if isinstance(item, Check):
        return [*(value for _, value in item.puts), *(edit.value for edit in item.edits)]
    return [item.value] if isinstance(item, Edit) else []
