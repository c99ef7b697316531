"""Tables in memory in regions, each with a log that a power failure may cut. A deferred check takes
effect at once, and a crash may undo it with all that came after it there; a write that is not
deferred makes all that is pending in its region durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from tests.simulation.calls import puts
from tests.simulation.world import D, World, Wrapper
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Check, Edit, Key
from txn.protocol.locks import holder_of
from txn.protocol.row import FREE
from txn.protocol.statuses import ProtocolName, Status
from txn.stores.base import Store, check_then_read
from txn.stores.local import LocalStore
from txn.tables.catalog import ROW_END, ROW_PASSED, escape_row, load_catalog
from txn.tables.kv.ordered import OrderedStore, Writer


class Region(NamedTuple):
    """A region of a table. part: the hash of its rows, or its one row."""

    table: bytes
    part: int | bytes


Division = Callable[[bytes, bytes], Region]
"""Returns the region of a table's row."""


def divide_by_row(table: bytes, row: bytes) -> Region:
    return Region(table, row)


def divide_by_hash(counts: Mapping[bytes, int]) -> Division:
    return lambda table, row: Region(table, crc32(row) % counts[table])


class RowCopy(NamedTuple):
    """A row as it was before a pending write: all it had, as it is stored, from start to stop."""

    start: bytes
    stop: bytes
    stored: Mapping[bytes, bytes]


class RegionStore(Wrapper):
    """A LocalStore whose regions have logs. pending: a copy of its row before each write."""

    check_and_read = check_then_read

    def __init__(self, inner: LocalStore, region_of: Division = divide_by_row) -> None:
        super().__init__(inner)
        self.pending: dict[Region, list[RowCopy]] = {}
        self._region_of = region_of
        self._prefixes: dict[bytes, bytes] = {}
        self._is_inside = False

    @property
    def inner(self) -> LocalStore:
        return self._inner

    @property
    def ordered(self) -> OrderedStore:
        return self._inner._ordered

    def region_of(self, key: Key) -> Region:
        assert key.table is not None
        return self._region_of(key.table, key.row)

    def flush(self, region: Region) -> None:
        self.pending.pop(region, None)

    def crash(self, region: Region, keep: int = 0) -> int:
        """Lose the pending writes of a region except the first `keep`; return how many are lost."""
        lost = self.pending.pop(region, [])[keep:]

        def put_back(writer: Writer) -> None:
            for start, stop, stored in reversed(lost):
                for name in list(writer.keys(start, stop)):
                    writer.delete(name)
                for name, value in stored.items():
                    writer.put(name, value)

        self.ordered.write(put_back)
        return len(lost)

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        self._inner.write(edits, durable=durable, by_row=by_row)
        for edit in edits:
            self.flush(self.region_of(edit.key))

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """Carry out the checks in order. One that is refused waits for no log. Of several, those
        of an empty cell put at the server's time even if the cell is newer."""
        answers: list[bool] = []
        copies: list[RowCopy] = []

        def work() -> None:
            now_ms = self._inner._clock.wall_ms()
            for check in checks:
                copies.append(self._copy_row(check.key))
                dated = check
                if len(checks) > 1 and check.expected == FREE:
                    edits = [Edit(key, value, now_ms) for key, value in check.puts]
                    dated = check._replace(puts=(), edits=(*edits, *check.edits))
                answers.extend(self._inner.check_and_put([dated], durable=durable))

        self._inner.atomically(work)  # all or none, if a table is gone
        for check, copy, done in zip(checks, copies, answers, strict=True):
            region = self.region_of(check.key)
            if done and check.is_deferred and not self._is_inside:
                self.pending.setdefault(region, []).append(copy)
            elif done:
                self.flush(region)
        return answers

    def put_if_all(self, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
        """Carry out groups of one region; a group without edits writes no log."""
        regions = [{self.region_of(check.key) for check in group} for group in groups]
        fit = [group for group, met in zip(groups, regions, strict=True) if len(met) == 1]
        found = iter(self._inner.put_if_all(fit))
        answers = [next(found) if len(met) == 1 else None for met in regions]
        for group, met, done in zip(groups, regions, answers, strict=True):
            if done and any(check.edits for check in group):
                self.flush(*met)
        return answers

    def atomically(self, work: Callable[[], None]) -> None:
        """Run it in one local transaction, of which nothing is deferred."""
        if self._is_inside:
            work()
            return
        self.pending.clear()
        self._is_inside = True
        try:
            self._inner.atomically(work)
        finally:
            self._is_inside = False

    def compact(self, table: bytes, purge_before_ms: int | None = None) -> None:
        for region in [region for region in self.pending if region.table == table]:
            self.flush(region)
        self._inner.compact(table, purge_before_ms)

    def _copy_row(self, key: Key) -> RowCopy:
        assert key.table is not None
        row = self._find_prefix(key.table) + escape_row(key.row)
        start, stop = row + ROW_END, row + ROW_PASSED
        stored = self.ordered.read(lambda reader: dict(reader.items(start, stop)))
        return RowCopy(start, stop, stored)

    def _find_prefix(self, table: bytes) -> bytes:
        if table not in self._prefixes:
            known = self.ordered.read(load_catalog)
            self._prefixes[table] = known.find(table).prefix
        return self._prefixes[table]


Kind = Callable[[Check], bool]


def is_step_to(*statuses: Status) -> Kind:
    values = {status.value for status in statuses}
    return lambda check: any(
        key.column == b"status" and value in values for key, value in puts(check)
    )


def is_lock(check: Check) -> bool:
    locks = _puts_of(check, LOCK_SUFFIX)
    return any(holder_of(key, Cell(value or FREE, 0)) for key, value in locks)


def is_unlock(check: Check) -> bool:
    locks = _puts_of(check, LOCK_SUFFIX)
    return bool(locks) and not is_lock(check) and len(locks) == len(puts(check))


def is_empty_tag(check: Check) -> bool:
    return any(value == FREE for _, value in _puts_of(check, TAG_SUFFIX))


def is_value(check: Check) -> bool:
    tags = [key for key, value in _puts_of(check, TAG_SUFFIX) if value]
    plain = [
        key
        for key, _ in puts(check)
        if key.family == D and not key.column.endswith((LOCK_SUFFIX, TAG_SUFFIX))
    ]
    return bool(tags or plain)


def is_poison(check: Check) -> bool:
    return check.expected == FREE and is_step_to(Status.ABORTED)(check)


def is_any(*kinds: Kind) -> Kind:
    return lambda check: any(kind(check) for kind in kinds)


def is_sent_deferred(check: Check) -> bool:
    return check.is_deferred


def _puts_of(check: Check, suffix: bytes) -> list[tuple[Key, bytes | None]]:
    return [(key, value) for key, value in puts(check) if key.column.endswith(suffix)]


class DeferringStore(Wrapper):
    """A store whose checks, and parts of plain writes, are deferred if `is_deferred` says so."""

    check_and_read = check_then_read

    def __init__(self, inner: Store, is_deferred: Kind) -> None:
        super().__init__(inner)
        self.is_deferred = is_deferred

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        rows: dict[object, list[Edit]] = {}
        for number, edit in enumerate(edits):
            place = (edit.key.table, edit.key.row) if by_row else number
            rows.setdefault(place, []).append(edit)
        synced: list[Edit] = []
        deferred: list[Check] = []
        for own in rows.values():
            check = Check(own[0].key, None, edits=tuple(own))
            if self.is_deferred(check):
                deferred.append(check._replace(is_deferred=True))
            else:
                synced += own
        if deferred:
            self._inner.check_and_put(deferred, durable=durable)
        if synced:
            self._inner.write(synced, durable=durable, by_row=by_row)

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        marked = [check._replace(is_deferred=self.is_deferred(check)) for check in checks]
        return self._inner.check_and_put(marked, durable=durable)


class PowerWorld(World):
    """A world in which each row is in a region of its own, and these writes are deferred."""

    def __init__(self, is_deferred: Kind, *, protocol: ProtocolName = "six-phase") -> None:
        super().__init__(protocol=protocol)
        assert isinstance(self.memory, LocalStore)
        self.regions = RegionStore(self.memory)
        self.memory = DeferringStore(self.regions, is_deferred)

    def lose(self, *keys: Key, keep: int = 0) -> int:
        regions = [self.regions.region_of(key) for key in keys]
        return sum(self.regions.crash(region, keep) for region in dict.fromkeys(regions))

    def lose_last(self, key: Key) -> int:
        pending = self.regions.pending.get(self.regions.region_of(key), ())
        return self.lose(key, keep=max(len(pending) - 1, 0))

    def flush(self) -> None:
        for region in list(self.regions.pending):
            self.regions.flush(region)
