"""The doctor: what it examines, and that it tells a safe store from one that is not."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.doctor import LEFT_MS, Diagnosis, Verdict, examine
from recovery.fsck import note_repair
from recovery.text import time_text
from tests.unit.test_search import NOW_MS, Rows
from tests.unit.worlds import TABLE, World, X, Y
from txn import Delete, connect
from txn.errors import NotApplied
from txn.model import Cell, Check, Edit, Family, Key, Mutation
from txn.protocol.protocols import protocol_key
from txn.protocol.row import DOCTOR_ROW, new_row_key
from txn.protocol.statuses import ProtocolName
from txn.stores.base import Store
from txn.testing.counting import CountingStore


class Odd(CountingStore):
    """A store that is not as it should be in one way: what it shows, or how it behaves."""

    def __init__(self, inner: Store, family: Family | None = None, fault: str = "") -> None:
        super().__init__(inner)
        self.family = family
        self.fault = fault

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        if self.fault == "away":
            raise NotApplied("cannot connect to the gateway gateway='there:9090'")
        found = super().describe(table)
        if self.family is None or found is None:
            return found
        return dict.fromkeys(found, self.family)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        if self.fault == "empty is not free" and checks[0].key.column.startswith(b"write"):
            return [False]
        answers = super().check_and_put(checks)
        if self.fault == "own time" and checks[0].puts[0][1] == b"held":
            key = checks[0].key
            cell = self.read([key])[key]
            assert cell is not None
            self.write([Edit(key, None, cell.timestamp)])
        return answers

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        found = super().read(*groups)
        if self.fault == "clock":
            return {
                key: cell and cell._replace(timestamp=cell.timestamp + 5_000)
                for key, cell in found.items()
            }
        return found


def examined(store: Store, world: World) -> list[Diagnosis]:
    context = replace(world.engine.context, store=store)
    return list(examine(context, [TABLE]))


def wrong(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    return [diagnosis for diagnosis in found if diagnosis.verdict is not Verdict.FINE]


def about(what: str, found: Sequence[Diagnosis]) -> Diagnosis:
    (told,) = (each for each in found if each.about == what)
    return told


def test_a_store_of_ours_is_fine() -> None:
    world = World()
    for _ in range(3):
        found = examined(world.store, world)
        assert wrong(found) == []
        assert [diagnosis.about for diagnosis in found] == [
            *("versions", "store", "table txn, family t", "protocol", "clock", "checked writes"),
            "table data, family d",
        ]


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_it_tells_the_protocol_and_whether_the_store_can_do_it(protocol: ProtocolName) -> None:
    world = World(protocol=protocol)
    narrow = CountingStore(world.store)
    narrow.features = frozenset({"describe"})
    for store, can in ((world.store, True), (narrow, False)):
        told = about("protocol", examined(store, world))
        assert told.seen.startswith(protocol)
        is_wrong = not can and protocol == "fenced"
        assert (told.verdict is Verdict.WRONG) is is_wrong
        assert ("cannot do" in told.seen) is not can


def test_the_clocks_and_its_name_matter_more_to_a_fenced_database() -> None:
    """Its clients choose all timestamps that count."""
    world = World(protocol="fenced")
    (clock,) = wrong(examined(Odd(world.store, fault="clock"), world))
    assert "beyond 60000 ms fsck repairs nothing, and a client commits nothing" in clock.mend
    world.engine.commit([Mutation(X, b"1"), Mutation(Y, b"1")])
    world.store.write([Edit(protocol_key(b"txn"), None, world.clock.wall_ms() + 1)])
    told = about("protocol", examined(world.store, world))
    assert told.seen.startswith(
        "fenced (rows: needed), which is not written down: txn init does it"
    )


def test_it_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    before, kept = list(world.store.scan(b"txn")), world.keys_kept()
    examined(world.store, world)
    assert (list(world.store.scan(b"txn")), world.keys_kept()) == (before, kept)
    apart = CountingStore(world.store)
    monkeypatch.setattr(apart, "atomically", lambda work: work())
    examined(apart, world)
    assert apart.calls["check_and_put"] == 1
    assert list(world.store.scan(b"txn")) == before


def test_it_deletes_what_a_killed_doctor_left_and_not_what_another_is_writing() -> None:
    world = World()
    left, fresh = (Key(DOCTOR_ROW, "t", name, b"txn") for name in ("clock", "write-1"))
    now_ms = world.clock.wall_ms()
    world.store.write([Edit(left, b"1", now_ms - LEFT_MS - 1), Edit(fresh, b"1", now_ms)])
    examined(world.store, world)
    assert (world.value(left), world.value(fresh)) == (None, b"1")


@pytest.mark.parametrize(
    ("family", "verdict", "mend"),
    [
        (Family(ttl_ms=60_000), Verdict.WRONG, "TTL => 'FOREVER'"),
        (Family(new_version_behavior=True), Verdict.WRONG, "NEW_VERSION_BEHAVIOR => 'false'"),
        (Family(durability="SKIP_WAL"), Verdict.WRONG, "DURABILITY => 'USE_DEFAULT'"),
        (Family(keep_deletes_ms=0), Verdict.CAUTION, "purge.deletes' => '86400000'"),
        (Family(replicas=3), Verdict.CAUTION, "strong consistency"),
    ],
)
def test_each_setting_that_breaks_the_protocol_is_found(
    family: Family, verdict: Verdict, mend: str
) -> None:
    world = World()
    found = wrong(examined(Odd(world.store, family), world))
    assert [(d.about, d.verdict) for d in found] == [
        ("table txn, family t", verdict),
        ("table data, family d", verdict),
    ]
    assert all(mend in diagnosis.mend for diagnosis in found)


def test_what_a_store_does_not_show_is_said() -> None:
    world = World()
    store = Odd(world.store)
    store.features = frozenset()
    found = wrong(examined(store, world))
    assert {d.verdict for d in found} == {Verdict.CAUTION}
    assert all("Thrift 2" in d.mend for d in found)


def test_a_server_that_does_not_behave_is_found() -> None:
    """Locks rest on this behaviour of HBase, which another server or version may lack."""
    for fault, part in {
        "away": "store",
        "clock": "clock",
        "empty is not free": "checked writes",
        "own time": "checked writes",
    }.items():
        world = World()
        (found,) = wrong(examined(Odd(world.store, fault=fault), world))
        assert (found.about, found.verdict, found.mend != "") == (part, Verdict.WRONG, True)


def test_tables_that_take_a_request_for_each_row_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work as they are, so nothing is wrong."""
    world = World()
    store = Odd(world.store)
    for endpoints, lacking in (
        ({b"txn": False, TABLE: False, b"other": False}, "txn data"),
        ({b"txn": False, TABLE: True}, "txn"),
    ):
        monkeypatch.setattr(store, "find_endpoints", lambda endpoints=endpoints: endpoints)
        (told,) = wrong(examined(CountingStore(store), world))
        assert (told.about, told.verdict) == ("endpoint", Verdict.CAUTION)
        assert told.mend.startswith(f"txn table endpoint {lacking}; ")


def test_missing_tables_are_named() -> None:
    world = World()
    context = replace(world.engine.context, table=b"other")
    found = wrong(list(examine(context, [b"none"])))
    assert [(d.about, d.seen) for d in found] == [
        ("table other", "is not there"),
        ("table none", "is not there"),
    ]


def test_it_tells_how_much_room_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    uri = f"embedded://{tmp_path}/my%20store"
    with connect(uri) as engine:
        for free, verdict in ((1 << 40, Verdict.FINE), (1 << 20, Verdict.CAUTION)):
            monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(free))
            disk = about("disk", list(examine(engine.context, uri=uri)))
            assert (disk.verdict, f"{free:,} bytes are free" in disk.seen) == (verdict, True)
            assert ("make room" in disk.mend) is (verdict is Verdict.CAUTION)


def test_it_tells_that_the_transaction_table_grows() -> None:
    rows = Rows()
    rows.put([new_row_key(NOW_MS - 50 * 3_600_000 + at, at) for at in range(3)])
    for last, words in ((False, "last repair: none"), (True, f"repair: {time_text(NOW_MS)}")):
        if last:
            note_repair(rows.context)
        (told,) = (each for each in examine(rows.context) if "grows" in each.seen)
        assert (told.verdict, told.mend) == (Verdict.CAUTION, "txn fsck --repair, hourly")
        assert "grows: 3 rows" in told.seen and words in told.seen


@pytest.mark.parametrize(("rows", "days", "grows"), [(30, 3, True), (30, 1, False), (9, 3, False)])
def test_it_tells_that_nobody_retires_keys(rows: int, days: int, grows: bool) -> None:
    world = World()
    with world.engine as engine:
        keys = [Key(f"gone{number}", "d", "x", TABLE) for number in range(rows)]
        engine.commit([Mutation(key, b"1") for key in keys])
        engine.commit([Delete(key) for key in keys])
        world.clock.advance(days * 86_400_000)
        told = [each.mend for each in examined(world.store, world) if "no value" in each.seen]
    assert told == (["txn fsck --repair --scan data, weekly"] if grows else [])
