"""Which writes are deferred, as a test has it, and a world whose regions have logs. A plain write
is shown to the predicates as a check without a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.calls import puts
from tests.simulation.regions import RegionStore
from tests.simulation.world import D, World, Wrapper
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Cell, Check, Edit, Key
from txn.protocol.locks import holder_of
from txn.protocol.row import FREE
from txn.protocol.statuses import ProtocolName, Status
from txn.stores.base import Store, check_then_read
from txn.stores.local import LocalStore

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
    """A store whose checks are deferred if `is_deferred` says so, which knows what their sender
    said. A deferred part of a plain write becomes a check without a condition."""

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
