"""Tables, families and namespaces come, change and go as HBase's clients want it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from txn.clock import ManualClock
from txn.model import Family
from txn.stores.local import LocalStore
from txn.tables import catalog
from txn.tables.admin import Admin
from txn.tables.catalog import KEEPS_MARKERS
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import Writer
from txn.tables.operations import FamilySettings, Put, Range, Refused, Remove, Selection
from txn.tables.rows import Rows

R = TypeVar("R")
D = {b"d": FamilySettings()}
TWO = {**D, b"e": FamilySettings()}


class Interrupted(MemoryStore):
    """Interrupted at a write transaction to come, unless something else happens before it."""

    left: int | None = None
    meanwhile: Callable[[], object] | None = None

    def write(
        self, body: Callable[[Writer], R], *, durable: bool = True, shared: bool = False
    ) -> R:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.left = None
                if self.meanwhile is None:
                    raise KeyboardInterrupt
                self.meanwhile()
        return super().write(body, durable=durable)


class World:
    def __init__(self) -> None:
        self.store, self.clock = Interrupted(), ManualClock()
        self.admin = Admin(self.store, self.clock)
        self.rows = Rows(self.store, self.clock)

    def put(self, table: bytes, family: bytes = b"d", rows: int = 1, time: int = 5) -> None:
        self.rows.mutate(
            table,
            [(b"%05d" % number, [Put(family, b"x", b"1", time)]) for number in range(rows)],
        )

    def count(self, table: bytes) -> int:
        return len(self.rows.scan(table, Range(), Selection(), limit_rows=99_999).results)

    def stored(self) -> list[bytes]:
        return self.store.read(lambda reader: list(reader.keys(b"", b"\xff")))


@pytest.fixture
def world() -> World:
    return World()


def test_settings_are_shown_as_they_were_given(world: World) -> None:
    given = FamilySettings(
        versions=7,
        ttl_ms=5_000,
        compression="GZ",
        block_cache=False,
        attributes=(("\xff", "\0"),),
        configuration=(("a", "b"),),
    )
    world.admin.create(b"t", {b"d": given, b"e": FamilySettings()})
    assert world.admin.table(b"t").families == {b"d": given, b"e": FamilySettings()}
    described = LocalStore(world.store, world.clock).describe(b"t")
    assert described == {b"d": Family(7, 5_000), b"e": Family(1)}


def test_a_table_of_the_protocol_is_a_table_of_the_others(world: World) -> None:
    tables = LocalStore(world.store, world.clock)
    tables.ensure_table(b"t", {b"d": Family(3)})
    settings = FamilySettings(versions=3, configuration=KEEPS_MARKERS)
    assert world.admin.table(b"t").families == {b"d": settings}
    assert world.admin.table(b"t").enabled
    world.put(b"t")
    assert world.count(b"t") == 1


def test_a_table_made_again_or_truncated_is_empty(world: World) -> None:
    """Cells under an old number would be another table's. Its regions are kept only if asked."""
    for keep in (True, False):
        world.admin.create(b"t", D, [b"m"])
        assert world.count(b"t") == 0
        world.put(b"t")
        world.admin.disable(b"t")
        world.admin.truncate(b"t", keep_splits=keep)
        assert world.count(b"t") == 0
        assert world.admin.table(b"t").families == D
        assert len(world.admin.table(b"t").regions) == 1 + keep
        world.put(b"t")
        world.admin.disable(b"t")
        world.admin.drop(b"t")
    assert list(world.admin.tables()) == []
    assert world.stored() == [b"\0\0\0\0counter"]


def test_what_is_dropped_goes_in_short_transactions_and_never_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table would otherwise stop all writers; whoever is interrupted leaves the rest."""
    monkeypatch.setattr(catalog, "GARBAGE_KEYS", 10)
    world.admin.create(b"t", TWO)
    world.put(b"t", rows=25)
    world.put(b"t", b"e", rows=25)
    world.rows.mutate(b"t", [(b"r", [Remove(b"e", None, 9)])])
    world.store.left = 4
    with pytest.raises(KeyboardInterrupt):
        world.admin.drop_family(b"t", b"e")
    assert world.count(b"t") == 25
    world.admin.add_family(b"t", b"e", FamilySettings())
    assert not [key for key in world.stored() if b"\0\0e\0" in key or key.endswith(b"\0\0\0e")]
    world.rows.mutate(b"t", [(b"r", [Put(b"e", b"x", b"1", 8)])])
    assert world.count(b"t") == 26


def interrupted_drop(world: World) -> None:
    """Drop the family e; its cells are still there."""
    world.store.left = 3
    with pytest.raises(KeyboardInterrupt):
        world.admin.drop_family(b"t", b"e")


@pytest.mark.parametrize("comes_back", ["ensured", "added", "added while it is dropped"])
def test_a_family_that_comes_back_has_only_what_it_then_gets(world: World, comes_back: str) -> None:
    """What is left of the old one must not be seen, nor its removal take cells of the new one."""
    world.admin.create(b"t", TWO)
    world.put(b"t", b"e", rows=2)
    if comes_back == "ensured":
        interrupted_drop(world)
        LocalStore(world.store, world.clock).ensure_table(b"t", {b"e": Family(versions=1)})
    elif comes_back == "added":
        interrupted_drop(world)
        world.admin.add_family(b"t", b"e", FamilySettings())
    else:
        world.store.left, world.store.meanwhile = 2, lambda: interrupted_by_another(world)
        with pytest.raises(KeyboardInterrupt):
            world.admin.modify(b"t", TWO)
    assert world.count(b"t") == 0
    world.put(b"t", b"e", rows=3)
    world.admin.remove_garbage()
    assert world.count(b"t") == 3


def interrupted_by_another(world: World) -> None:
    world.store.meanwhile = None
    interrupted_drop(world)
    world.store.left = 1


def test_two_changes_of_a_table_at_once_are_both_made(world: World) -> None:
    """Each is of one family: the other one's must not go, nor all that was put there."""
    one, two, plain = world.admin, Admin(world.store, world.clock), FamilySettings()
    one.create(b"t", {**D, b"gone": plain})
    many, few = FamilySettings(versions=9), FamilySettings(versions=7)
    pairs: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (lambda: one.add_family(b"t", b"e", plain), lambda: two.add_family(b"t", b"f", plain)),
        (lambda: one.modify_family(b"t", b"d", many), lambda: two.drop_family(b"t", b"gone")),
        (lambda: one.drop_family(b"t", b"e"), lambda: two.modify_family(b"t", b"f", few)),
    ]
    for change, other in pairs:
        world.store.left, world.store.meanwhile = 1, other
        change()
    assert one.table(b"t").families == {b"d": many, b"f": few}


def test_namespaces_have_tables_of_their_own(world: World) -> None:
    world.admin.create_namespace(b"ns", {"a": "1"})
    world.admin.create(b"ns:t", D)
    world.admin.create(b"default:t", D)
    assert list(world.admin.tables(b"ns")) == [b"ns:t"]
    assert list(world.admin.tables(b"default")) == [b"t"]
    assert world.admin.namespaces() == {b"default": {}, b"hbase": {}, b"ns": {"a": "1"}}
    world.admin.modify_namespace(b"ns", {})
    assert world.admin.namespaces()[b"ns"] == {}
    with pytest.raises(Refused, match="has tables"):
        world.admin.drop_namespace(b"ns")
    world.admin.disable(b"ns:t")
    world.admin.drop(b"ns:t")
    world.admin.drop_namespace(b"ns")
    assert b"ns" not in world.admin.namespaces()


def create_with(admin: Admin, **settings: Any) -> None:
    admin.create(b"u", {b"d": FamilySettings(**settings)})


CALLS: list[tuple[Callable[[Admin], object], str]] = [
    (lambda admin: admin.create(b"t", D), "table exists"),
    (lambda admin: admin.create(b"no:t", D), "namespace not found"),
    (lambda admin: admin.create(b"a:b:c", D), "illegal argument"),
    (lambda admin: admin.create(b"u", D, [b""]), "illegal argument"),
    (lambda admin: admin.create(b"u", D, [b"a", b"a"]), "illegal argument"),
    (lambda admin: create_with(admin, min_versions=2), "do not retry"),
    (lambda admin: create_with(admin, keep_deleted_cells="TRUE"), "do not retry"),
    (lambda admin: create_with(admin, new_version_behavior=True), "do not retry"),
    (lambda admin: admin.drop(b"t"), "table not disabled"),
    (lambda admin: admin.enable(b"t"), "table not disabled"),
    (lambda admin: admin.table(b"u"), "table not found"),
    (lambda admin: admin.disable(b"off"), "table not enabled"),
    (lambda admin: admin.add_family(b"t", b"d", FamilySettings()), "do not retry"),
    (lambda admin: admin.modify_family(b"t", b"e", FamilySettings()), "no such column family"),
    (lambda admin: admin.drop_family(b"t", b"e"), "no such column family"),
    (lambda admin: admin.drop_family(b"t", b"d"), "do not retry"),
    (lambda admin: admin.tables(b"no"), "namespace not found"),
    (lambda admin: admin.create_namespace(b"hbase", {}), "namespace exists"),
    (lambda admin: admin.create_namespace(b"a-b", {}), "illegal argument"),
    (lambda admin: admin.drop_namespace(b"no"), "namespace not found"),
    (lambda admin: admin.drop_namespace(b"default"), "constraint"),
]


@pytest.mark.parametrize(("call", "reason"), CALLS)
def test_what_hbase_refuses_is_refused_with_its_reason(
    world: World, call: Callable[[Admin], object], reason: str
) -> None:
    world.admin.create(b"t", D)
    world.admin.create(b"off", D)
    world.admin.disable(b"off")
    before = world.stored()
    with pytest.raises(Refused) as caught:
        call(world.admin)
    assert caught.value.reason == reason
    assert world.stored() == before
