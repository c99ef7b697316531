"""Interactive transactions: read anything, then commit once, if nothing that was read has changed.

Nothing is locked or written while the block runs. Its reads become the assertions of its commit,
its writes the mutations. A block that wrote nothing commits by a read at one instant that confirms
all its reads. Others may commit between two reads of a block; its reads may then never have held
together, and the block will not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from inspect import isgenerator, isgeneratorfunction
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from txn.assertions import Assertion, Version, bind, holds, list_keys
from txn.client.backend import Backend
from txn.client.hot_keys import HotKeyTicket
from txn.errors import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    Repeated,
    StoreError,
    TokenReusedError,
    annotate,
)
from txn.model import (
    Cell,
    Delete,
    Key,
    Mutation,
    Row,
    as_bytes,
    check_items,
    check_value,
    check_whole,
)
from txn.policy import Pace
from txn.protocol.codec import encode_answer
from txn.reading.scans import group_by_row
from txn.reading.snapshot import Snapshot
from txn.request import Committed, Request, Terms, bind_key, check_deadline
from txn.spans import Columns, Span, make_span

T = TypeVar("T")
COUNTER_BYTES = 8
NO_VERSION = 0


Commit = Callable[[Request, Sequence[Span], Snapshot], Committed]
"""Commits a block, with its token and labels, if the spans have no keys but those that it names.
The cells that it read are passed along."""


class OptimisticTransaction:
    """One block's reads and writes; use it inside its `with`, in one thread.

    The end of the block commits all of it, or raises any error of `Engine.commit`: a ConflictError
    if something that was read has changed. An exception in the block writes nothing. Afterwards
    `result` is the Committed, or None if the block wrote nothing; with a `once` token that has been
    committed, it is so from the beginning. `answer` is what a token keeps: see `Engine.run`.
    """

    def __init__(
        self,
        backend: Backend,
        table: bytes | None,
        commit: Commit,
        read_ms: Callable[[], int | None],
    ) -> None:
        self._backend = backend
        self.find_first: Callable[[], Committed | None] | None = None  # with a token
        self.answer: Any = ...  # none, so that none is kept
        self._read_ms = read_ms
        self._table = table
        self._commit_block = commit
        self._bound: dict[Key, Key] = {}
        self._read: Snapshot = {}
        self._known: Snapshot = {}
        self._spans: list[Span] = []
        self._written: dict[Key, bytes | None] = {}
        self._required: list[Assertion] = []
        self._reads = 0
        self.ticket = HotKeyTicket()
        self._entered = False
        self._open = False
        self.result: Committed | None = None

    # -------------------------------------------------------------------------------- reading

    def get(self, key: Key) -> bytes | None:
        """Return the key's value or None: what this block wrote, else what it read first."""
        bound = self._bind(key)
        if not self._is_known(bound):
            self._read_keys([bound])
        return self._value(bound)

    def get_many(self, wanted: Collection[Key]) -> dict[Key, bytes | None]:
        """Return the values of keys. Keys that are new to this block are of one instant, in a
        fenced database only those of each row; reads that never held together do not commit."""
        bound = {key: self._bind(key) for key in check_items("wanted", wanted)}
        new = [key for key in dict.fromkeys(bound.values()) if not self._is_known(key)]
        if new:
            self._read_keys(new)
        return {key: self._value(mine) for key, mine in bound.items()}

    def scan(
        self,
        table: str | bytes | None = None,
        start: str | bytes = b"",
        stop: str | bytes | None = None,
        *,
        prefix: str | bytes | None = None,
        columns: Columns | None = None,
    ) -> list[Row]:
        """Return the rows of a range that have a value, in order, with this block's writes.

        The arguments and rows are those of `Engine.scan`; this block's writes have the timestamp 0.
        Each cell is validated like a single read. The commit reads the range again under the locks,
        and a new cell is a conflict. More rows than `Policy.snapshot_rows` raise
        InvalidRequestError.
        """
        self._check_open()
        wanted = make_span(self._table if table is None else table, start, stop, prefix, columns)
        stored = (row for row in self._backend.scan(wanted, self._read_ms()) if row.cells)
        limit = self._backend.pace.policy.snapshot_rows
        rows = list(islice(stored, limit + 1))
        if len(rows) > limit:
            raise InvalidRequestError(
                "too many rows for a transaction", limit=limit, table=wanted.table
            )
        for key, cell in ((key, cell) for row in rows for key, cell in row.cells.items()):
            if not self._was_read(key):
                self._read[key] = cell
        self._spans.append(wanted)
        names = sorted(key for key in {**self._read, **self._written} if key in wanted)
        return list(
            group_by_row({key: found for key in names if (found := self._cell(key)) is not None})
        )

    # -------------------------------------------------------------------------------- writing

    def put(self, key: Key, value: str | bytes) -> None:
        """Set the key's value when the block commits."""
        bound, given = self._bind(key), as_bytes("value", value)
        check_value(bound, given)
        self._written[bound] = given

    def delete(self, key: Key) -> None:
        """Remove the key when the block commits."""
        self._written[self._bind(key)] = None

    def require(self, assertion: Assertion) -> None:
        """Commit only if the assertion holds for the stored cells, without this block's own
        changes; otherwise the block raises AssertionFailedError."""
        self._check_open()
        self._required.append(bind(assertion, lambda key: bind_key(key, self._table)))

    def increment(self, key: Key, by: int = 1) -> int:
        """Add to a counter and return its new value. A counter is 8 bytes, big-endian and signed,
        as in HBase; absent counts as 0. Raise InvalidRequestError for other bytes, and for
        overflow."""
        check_whole("by", by)
        value = self.get(key)
        if value is not None and len(value) != COUNTER_BYTES:
            raise InvalidRequestError("not a counter", key=key, bytes=len(value))
        total = int.from_bytes(value or b"", signed=True) + by
        try:
            self.put(key, total.to_bytes(COUNTER_BYTES, signed=True))
        except OverflowError as error:
            raise InvalidRequestError("counter overflows", key=key, by=by) from error
        return total

    def append(self, key: Key, value: str | bytes) -> bytes:
        """Append bytes to the key's value; return the whole value."""
        whole = (self.get(key) or b"") + as_bytes("value", value)
        self.put(key, whole)
        return whole

    # --------------------------------------------------------------------------------- ending

    def __enter__(self) -> Self:
        if self._entered:
            raise InvalidRequestError("a transaction is one block")
        if self.find_first is not None:
            self.result = self.find_first()
        self._entered = self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        try:
            if error is None and self.result is None:
                self._commit() if self._written else self._validate()
                if self.result is None and self.find_first is not None:  # committed meanwhile
                    self.result = self.find_first()
        except AssertionFailedError as failed:
            # A failed version of a read is a conflict, so that the block runs again.
            lost = failed.assertion
            if not isinstance(lost, Version) or lost in self._required:
                raise
            raise ConflictError(
                "what was read has changed", key=lost.key, transaction=failed.transaction
            ) from failed
        finally:
            self.ticket.end()

    def _commit(self) -> None:
        for key in self._written if self._spans else ():
            self._note_absence(key)
        mutations = [
            Delete(key) if value is None else Mutation(key, value)
            for key, value in self._written.items()
        ]
        answer = None if self.find_first is None else encode_answer(self.answer)
        request = Request(tuple(mutations), (*self._versions(), *self._required), answer=answer)
        self.result = self._commit_block(request, self._spans, self._known)

    def _validate(self) -> None:
        """Check that all reads held at one instant, unless there was only one read."""
        if self._reads <= 1 and not self._spans and not self._required:
            return
        asserted = (key for assertion in self._required for key in list_keys(assertion))
        wanted = list(dict.fromkeys((*self._read, *asserted)))
        cells, found = self._backend.view(wanted, self._spans, self._read_ms())
        for span in found:
            cells = {**span, **cells}
        appeared = [Version(key, None) for span in found for key in span if key not in self._read]
        for assertion in (*self._versions(), *appeared, *self._required):
            if not holds(assertion, cells):
                raise AssertionFailedError(
                    assertion, {key: cells[key] for key in list_keys(assertion)}
                )

    def _versions(self) -> list[Version]:
        return [Version(key, cell and cell.timestamp) for key, cell in self._read.items()]

    # -------------------------------------------------------------------------------- details

    def _bind(self, key: Key) -> Key:
        self._check_open()
        if type(key) is Key and key in self._bound:
            return self._bound[key]
        bound = self._bound[key] = bind_key(key, self._table)
        return bound

    def _read_keys(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._backend.check_key(key, self._read_ms())
        found = self._backend.read_for_block(keys, self.ticket, self._read_ms())
        for key in keys:
            self._read[key] = found[key]
        has_locks = len(found) > len(keys)
        if has_locks:
            for cell in found:
                if cell not in self._known:  # keeps the first read of each lock
                    self._known[cell] = found[cell]
        self._reads += 2 if has_locks and len({key[::3] for key in keys}) > 1 else 1

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidRequestError("a transaction is used inside its with block")

    def _is_known(self, key: Key) -> bool:
        if self._spans and key not in self._written:
            self._note_absence(key)
        return key in self._written or key in self._read

    def _note_absence(self, key: Key) -> None:
        if key not in self._read and self._was_read(key):
            self._read[key] = None

    def _was_read(self, key: Key) -> bool:
        return key in self._read or any(key in span for span in self._spans)

    def _value(self, key: Key) -> bytes | None:
        cell = self._cell(key)
        return cell and cell.value

    def _cell(self, key: Key) -> Cell | None:
        if key not in self._written:
            return self._read[key]
        value = self._written[key]
        return None if value is None else Cell(value, NO_VERSION)


def find_answer(block: OptimisticTransaction) -> Any:
    """Return the answer of a block that has ended, or of the first commit of its token. Raise
    Repeated if that has none."""
    done = block.result
    if done is None or not done.repeated:
        return block.answer
    if not done.has_answer:
        raise Repeated(done)
    return done.answer


def refuse_unrun(function: Callable[..., object], result: T) -> T:
    """Return the result of a block's function; raise InvalidRequestError if it has yet to run."""
    is_unrun = hasattr(result, "__await__") or hasattr(result, "__aiter__")
    if is_unrun or (isgenerator(result) and isgeneratorfunction(function)):
        if close := getattr(result, "close", None):
            close()  # Python warns of a coroutine that nobody awaits
        raise InvalidRequestError(
            "a block runs a plain function: connect_async is for async ones", function=function
        )
    return result


class Repeats:
    """Counts the attempts of a block. deadline_ms: None: the policy's.

    Another attempt or caller may commit the block's token meanwhile. So when an error ends a block
    with a token, one more attempt looks at the token, and raises `end` if it is free. If an attempt
    may have committed, its CommitOutcomeUnknown is raised instead.
    """

    def __init__(
        self, function: object, pace: Pace, attempts: int, deadline_ms: int | None, terms: Terms
    ) -> None:
        if not callable(function):
            raise InvalidRequestError("a block is run as a function of it", given=function)
        self._is_limited = deadline_ms is not None
        deadline_ms = pace.policy.deadline_ms if deadline_ms is None else deadline_ms
        check_whole("attempts", attempts, 1)
        check_deadline(deadline_ms)
        self._pace = pace
        self._attempts = attempts
        self._due_ms = pace.clock.monotonic_ms() + deadline_ms
        self._made = 0
        self._conflict: ConflictError | None = None
        self._has_token = terms.once is not None
        self.end: Exception | None = None
        self._unknown: Exception | None = None

    def left_ms(self) -> int:
        return self._due_ms - self._pace.clock.monotonic_ms()

    def read_ms(self) -> int | None:
        """Return how long a read may take: the time left of a given deadline. The policy's deadline
        applies to commits only, so that a block may read for longer."""
        return self.left_ms() if self._is_limited else None

    def begin(self) -> bool:
        is_time = self.left_ms() > 0
        self._made += is_time
        return is_time

    def note(self, error: Exception) -> int | None:
        """Return the pause before the next attempt (ms), or None if there is none."""
        if isinstance(error, ConflictError):
            self._conflict = error
        elif isinstance(error, CommitOutcomeUnknown) and self._has_token:
            self._unknown = error
        is_open = error in (self._conflict, self._unknown)
        is_open = is_open or (self._unknown is not None and isinstance(error, StoreError))
        if is_open and self.end is None and self._made < self._attempts:
            pause_ms = self._pace.policy.backoff.pause_ms(self._made, self._pace.rng)
            return max(0, min(pause_ms, self.left_ms()))
        if not self._has_token or isinstance(error, Repeated | TokenReusedError):
            return None
        if self.end is None:
            self.end = error
            return 0
        raise self._unknown or self.end

    def make_error(self) -> Exception:
        if (known := self._unknown or self.end) is not None:
            return known
        facts = annotate("deadline passed between attempts", attempts=self._made)
        lost = None if self._conflict is None else self._conflict.transaction
        error = DeadlineError(facts, transaction=lost)
        error.__cause__ = self._conflict
        return error
