"""The fenced protocol: one lock a row and family, which counts, and is asked for after reading.

A lock is taken by a compare-and-set from the exact value that was read, so having it proves that
nothing in its row and family has changed since. Clients choose all timestamps but those for people:
what comes late lands below what came after it. So only where two clients race is anything compared.
The argument for each rule is in docs/protocol.md, under "Fenced".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from txn.errors import CorruptRowError, DeadlineError, StoreError
from txn.model import Cell, Check, Edit, Key
from txn.protocol.alone import commit_alone, is_alone
from txn.protocol.announce import announce
from txn.protocol.attempt import (
    WRITTEN_WITHIN_MS,
    Attempt,
    Cells,
    Context,
    Met,
    ProtocolName,
    Transaction,
    Work,
    advance,
    call_store,
    fail_aborted,
    free_locks,
    group_by_holder,
    is_late,
)
from txn.protocol.beats import TOO_LATE, beat, beat_between, show_life, split_portions
from txn.protocol.commit import (
    look_at_ranges,
    make_conflict,
    run_for_available,
    settle_all,
    tell_conflicts,
    write_rows,
)
from txn.protocol.lock_cells import (
    FREE,
    holder_of,
    make_foreign_error,
    read_lock,
    unit_lock,
)
from txn.protocol.looks import look_by_counts
from txn.protocol.phases import FENCED_STEPS, Status, Steps
from txn.protocol.row import Plan, column, created_ms, is_row_key, status_key
from txn.protocol.together import can_commit_together
from txn.protocol.units import (
    ASKS,
    Unit,
    find_false,
    list_edits,
    list_held,
    look_at_units,
    raise_timestamp,
    read_units,
)
from txn.protocol.waiting import Contention, fail_overtaken, make_assertion_error
from txn.stores.base import Feature

PLACES = {
    Status.PART: 0,
    Status.WRITTEN: 0,
    Status.LOCKED: 1,
    Status.ASSERTED: 2,
    Status.COMPLETE: 5,
    Status.ABORTING: 6,
    Status.ABORTED: 7,
}
"""How many ms after its row key's time each status lies."""

OWN_TIMES = (b"status", b"buffer", b"plan", b"ranges", b"reason", b"parts")
"""The columns of a transaction row whose timestamps are the client's."""


class FencedRules:
    """A lock for each row and family; statuses 0, 2 and 5, at timestamps of the owner's."""

    name: ProtocolName = "fenced"
    needs: frozenset[Feature] = frozenset({"multi_cell_check", "row_mutations"})
    steps: Steps = FENCED_STEPS
    plain = frozenset({Status.WRITTEN, Status.COMPLETE, Status.ABORTED})
    locks_rows = True

    @property
    def forward(self) -> Sequence[tuple[Status, Work, Status]]:
        """Values and free locks in one step of each row, and a status after all of them."""
        return ((Status.ASSERTED, finish_units, Status.COMPLETE),)

    def lock_of(self, key: Key) -> Key:
        """Return the lock of the key's row and family."""
        return unit_lock(key)

    def guards_of(self, key: Key) -> tuple[Key, ...]:
        """Return that lock: it counts every change."""
        return (unit_lock(key),)

    def make_step(self, context: Context, t: Transaction, new: Status, cells: Cells) -> Check:
        """Return the compare-and-set of the status, at its own place after the row key's time."""
        status = status_key(context.table, t.row_key)
        began = column(context.table, t.row_key, new.at)
        at = created_ms(t.row_key) + PLACES[new]
        expected = FREE if t.status is None else t.status.encoded
        edits = [Edit(key, value, at) for key, value in (*cells, (status, new.encoded))]
        return Check(status, expected, ((began, FREE),), tuple(edits))

    def make_free(self, lock: Key, cell: Cell) -> Check:
        """Return the compare-and-set from the exact value, one above its timestamp."""
        free = read_lock(lock, cell).give_back().value
        return Check(lock, cell.value, edits=(Edit(lock, free, cell.timestamp + 1),))

    def gone_until(self, key: Key, cell: Cell) -> int:
        """Return what is above all that any client writes there, early or late."""
        if key.column in OWN_TIMES and is_row_key(key.row):
            return max(cell.timestamp, created_ms(key.row) + PLACES[Status.ABORTED])
        return cell.timestamp

    def free_own(self, context: Context, transactions: Sequence[Transaction]) -> None:
        """Look which locks are theirs, and free these."""
        free_own_units(context, transactions)

    def prepare(
        self,
        context: Context,
        transactions: Sequence[Attempt],
        contention: Contention,
        patient: bool,
    ) -> list[Attempt]:
        """Read, write the rows, lock what was read."""
        live = run_for_available(
            lambda some: read_units(context, some, contention, patient), transactions
        )
        # In one local transaction nothing is saved by having no row.
        is_apart = not can_commit_together(context)
        live = write_rows(context, [t for t in live if not (is_apart and is_alone(t))])
        live = run_for_available(lambda some: lock_units(context, some, contention, patient), live)
        if any(t.spans for t in live):
            live = run_for_available(lambda some: look_after(context, some, contention), live)
        return plan_units(context, live)

    def pass_by(
        self,
        context: Context,
        transactions: Sequence[Attempt],
        contention: Contention,
        patient: bool,
    ) -> None:
        """Commit those of one row and family, which were read and judged."""
        due = [t for t in transactions if t.failure is None and t.status is None]
        if due:
            commit_alone(context, due, contention, patient)

    def look(self, context: Context, keys: Sequence[Key]) -> tuple[dict[Key, Cell | None], bool]:
        """Look at values and locks, then at the locks again."""
        return look_by_counts(context, keys)


# ----------------------------------------------------------------------- until the decision


@announce("lock")
def lock_units(
    context: Context, transactions: Sequence[Attempt], contention: Contention, patient: bool
) -> list[Attempt]:
    """Take the locks, each from the value that was read. Where it has another one, and is free, the
    unit is read again: whatever was read of it before is forgotten. Then assertions are evaluated
    again, of all: what was read again is not known any more where a table went meanwhile."""
    if patient:
        owners = {lock: t for t in transactions for lock in t.units}
        for lock in beat_between(context, transactions, sorted(owners)):
            _lock_patiently(context, transactions, (owners[lock], lock), contention)
    else:
        units = [(t, lock) for t in transactions for lock in t.units]
        for some in beat_between(context, transactions, split_portions(units)):
            _lock_at_once(context, transactions, some, contention)
    for t in transactions:
        if t.failure is None:
            _judge_locked(t)
    return [t for t in transactions if t.failure is None]


def look_after(
    context: Context, transactions: Sequence[Attempt], contention: Contention
) -> list[Attempt]:
    """Look at scanned ranges, after the rows of who has scanned any say so: readers wait then."""
    due = [t for t in transactions if t.spans and t.status is Status.WRITTEN]
    sent_ms = context.clock.monotonic_ms()
    advance(context, due, Status.LOCKED)
    show_life(due, sent_ms)
    return look_at_ranges(context, fail_aborted(transactions, Status.LOCKED), contention)


def plan_units(context: Context, transactions: Sequence[Attempt]) -> list[Attempt]:
    """Plan what replaces what, and what its locks say."""
    for t in transactions:
        if is_late(context, t):
            t.failure = DeadlineError(TOO_LATE, transaction=t.row_key)
            continue
        replaced = (t.seen[mutation.key] for mutation in t.request.mutations)
        t.plan = Plan(
            t.timestamp,
            tuple(cell.timestamp if cell else 0 for cell in replaced),
            tuple(_take(t, lock) for lock in t.units),
        )
    return [t for t in transactions if t.failure is None]


# ----------------------------------------------------------------------- after the decision


@announce("put")
def finish_units(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Put the values of each row and family together with its free lock, in one step. Only an owner
    whose decision was answered with yes, not long ago, does so without looking; anybody else may
    come after others, and after delete markers have gone: it compares the lock."""
    edits: list[Edit] = []
    checks: dict[Key, Check] = {}
    for t in transactions:
        is_sure = _is_sure(context, t)
        if len(t.decided.locks) != len(t.units):
            raise CorruptRowError("the plan is of another protocol", transaction=t.row_key)
        timestamp = t.decided.timestamp
        for (lock, own), held in zip(list_edits(t, timestamp), t.decided.locks, strict=True):
            said = read_lock(lock, Cell(held, timestamp))
            if said.holder != t.row_key:
                raise CorruptRowError("the plan has another's lock", transaction=t.row_key)
            freed = said.give_back()
            free = Edit(lock, freed.value, timestamp + 1)
            if is_sure:
                edits += (*own, free)
            else:
                checks[lock] = Check(lock, held, edits=(*own, free))
    if edits:
        call_store(context, lambda: context.store.write(edits, durable=False, by_row=True))
    if checks:
        _finish_compared(context, checks)
    return list(transactions)


def _finish_compared(context: Context, checks: Mapping[Key, Check]) -> None:
    """Finish units whose locks are still held. A "no" is as good where somebody else has finished
    it, which the lock tells: it has counted on, or was given back, above what is put here. A lock
    that is absent is that of a table that was made again. One that went back was changed past the
    protocol, and nobody knows what was put: CorruptRowError."""
    found = _ask_to_finish(context, checks)
    absent = [checks[lock]._replace(expected=FREE) for lock, cell in found.items() if cell is None]
    found |= _ask_to_finish(context, {check.key: check for check in absent})
    for lock, cell in found.items():
        freed = checks[lock].edits[-1]
        now, last = read_lock(lock, cell), read_lock(lock, Cell(freed.value or FREE, 0))
        is_past = now.taken > last.taken or (now.taken == last.taken and now.holder == FREE)
        if cell is not None and not (is_past and cell.timestamp >= (freed.timestamp or 0)):
            raise make_foreign_error("the lock went back while it was held", lock, cell)


def _ask_to_finish(context: Context, checks: Mapping[Key, Check]) -> dict[Key, Cell | None]:
    """Return the locks of those that were refused, as they are now."""

    def attempt() -> dict[Key, Cell | None]:
        answers = context.store.check_and_put(list(checks.values()), durable=False)
        refused = [lock for lock, done in zip(checks, answers, strict=True) if not done]
        found = context.store.read(refused) if refused else {}
        for lock, cell in found.items():
            if (cell.value if cell else FREE) == checks[lock].expected:
                raise StoreError("lock does not change", key=lock)
        return found

    return call_store(context, attempt) if checks else {}


@announce("unlock")
def free_own_units(context: Context, transactions: Sequence[Transaction]) -> list[Transaction]:
    """Free each lock that is still one of these transactions' own. An owner knows what they say;
    others look."""
    own: dict[Key, Cell] = {}
    unknown: dict[Key, bytes] = {}
    for t in transactions:
        for lock in (lock for lock in t.units if lock in t.held):
            if isinstance(t, Attempt):
                own[lock] = Cell(_take(t, lock), t.timestamp)
            else:
                unknown[lock] = t.row_key
    found = call_store(context, lambda: context.store.read(list(unknown))) if unknown else {}
    for lock, cell in found.items():
        if cell is not None and holder_of(lock, cell) == unknown[lock]:
            own[lock] = cell
    free_locks(context, own)
    return list(transactions)


# ----------------------------------------------------------------------------- the details


def _judge_locked(t: Attempt) -> None:
    """Evaluate what was read, perhaps again. All locks are held, so it is the truth."""
    lost = find_false(t)
    if lost is not None:
        t.failure = make_assertion_error(t, lost)


def _take(t: Attempt, lock: Key) -> bytes:
    return read_lock(lock, t.found[lock]).take(t.row_key).value


def _ask(context: Context, units: Iterable[Unit]) -> list[Unit]:
    """Ask for locks, from the values that were found; return those not got, read again. What is
    found then is free, or held by others. What was found held is not asked for."""
    due = [unit for unit in units if unit[0].failure is None]
    asked: dict[Unit, tuple[Cell | None, Check]] = {}
    for t, lock in due:
        if holder_of(lock, t.found[lock]) == FREE:
            t.held.add(lock)
            cell = t.found[lock]
            taken = Edit(lock, _take(t, lock), t.timestamp)
            asked[t, lock] = cell, Check(lock, cell.value if cell else FREE, edits=(taken,))

    def attempt() -> list[Unit]:
        checks = [check for _, check in asked.values()]
        answers = context.store.check_and_put(checks, durable=False)
        refused = [unit for unit, got in zip(asked, answers, strict=True) if not got]
        _look_again(context, refused)
        missing = []
        for t, lock in refused:
            cell, check = asked[t, lock]
            found = t.found[lock]
            if found is not None and found.value == check.edits[0].value:
                t.found[lock] = cell  # a repeated request is refused by the lock that it took
            else:
                missing.append((t, lock))
                if found is not None and found.value != check.expected:
                    t.held.discard(lock)  # what was asked for can never be granted any more
        return missing

    held = [unit for unit in due if unit not in asked]
    return (call_store(context, attempt) if asked else []) + held


def _lock_at_once(
    context: Context, batch: Sequence[Attempt], units: Sequence[Unit], contention: Contention
) -> None:
    """Ask for locks and never wait. Who holds a key in demand has just taken it, and lives."""
    refused = _ask(context, units)
    for _ in range(ASKS):
        if not refused:
            break
        met = fail_overtaken(list_held(refused))
        if met:
            tell_conflicts(context, met)
            hot = {item.t: contention.list_hot_keys(item.t.keys) for item in met}
            unknown = group_by_holder(item for item in met if item.key not in hot[item.t])
            gone = settle_all(context, batch, contention, unknown)
            for item in met:
                if item.holder not in gone:
                    item.t.failure = make_conflict(item.t, item.key, item.holder)
            held = {(item.t, item.t.locks[item.key]) for item in met if item.holder in gone}
            _look_again(context, [unit for unit in refused if unit in held])
        _fail_overtaken_units(refused)
        refused = _ask(context, refused)
    for t, lock in refused:
        holder = holder_of(lock, t.found[lock])
        t.failure = t.failure or make_conflict(t, t.units[lock][0], holder)


def _lock_patiently(
    context: Context, batch: Sequence[Attempt], unit: Unit, contention: Contention
) -> None:
    """Take one lock, waiting for its holders."""
    t, _ = unit
    tries = 0
    while t.failure is None and _ask(context, [unit]):
        while t.failure is None and (met := fail_overtaken(list_held([unit]))):
            tell_conflicts(context, met)
            contention.wait_for_holders(met, tries)
            beat(context, batch)
            tries += 1
            if t.failure is None:
                _look_again(context, [unit])
        if is_late(context, t):
            t.failure = t.failure or DeadlineError(TOO_LATE, transaction=t.row_key)
        _fail_overtaken_units([unit])


def _look_again(context: Context, units: Sequence[Unit]) -> None:
    """Read units again; the commit comes above what is found, whatever happens next."""
    look_at_units(context, units)
    for t in dict.fromkeys(t for t, _ in units):
        raise_timestamp(context, t)


def _fail_overtaken_units(units: Iterable[Unit]) -> None:
    """Fail those that assert what has been overtaken."""
    fail_overtaken([Met(t, t.units[lock][0], FREE, None) for t, lock in units if not t.failure])


def _is_sure(context: Context, t: Transaction) -> bool:
    """Whether nobody can have come after this transaction yet but by finishing it."""
    if not isinstance(t, Attempt) or t.decided_ms is None:
        return False
    return context.clock.monotonic_ms() - t.decided_ms <= WRITTEN_WITHIN_MS
