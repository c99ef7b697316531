"""The contract between the protocol and whatever keeps the cells.

Every call is a batch. A call that returns has taken effect for all other clients; one that raises
`NotApplied` has not and never will; any other error means that it may have, or still may. All that
becomes of a call is a StoreError: what the author of a request can change is asked with `describe`,
before anything is written, and a table that is missing or disabled after that is the store's
trouble, `TableUnavailable`, which names it. Only a call that no store could take, a row too long or
a checked put of two rows, is an InvalidRequestError, and then nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, RowExclusion

Feature = Literal[
    "multi_cell_check",
    "row_mutations",
    "describe",
    "instant_reads",
    "atomic",
    "remote_calls",
]
"""A checked write carries any cells of its row; it can delete, with timestamps of its own, and what
is written to one row can take effect at once; `describe` shows all settings that matter; all cells
of a `read` come from one instant; what is done `together` is one transaction; a call is a request
to a server, so that what nobody waits for had better go with others of its kind."""

P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol):
    """Cells of tables, as HBase keeps them."""

    @property
    def features(self) -> frozenset[Feature]:
        """What the store can do."""

    def read(
        self, *groups: Collection[Key], beside: Callable[[], None] | None = None
    ) -> dict[Key, Cell | None]:
        """Return the newest visible version of each key, and None for each absent one.
        Cells of one row that are read in one group come from one instant, and no cell of a later
        group was read before all of the earlier groups were.
        `beside` is run once, before the reading or meanwhile, where that saves waiting; what it
        raises is raised."""

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        """Return the visible versions of each key, newest first, at most so many of each, and of
        those that its family keeps; of an absent key none. Those of one row and family come from
        one instant, but for a gateway of Thrift 1. The protocol needs the newest alone: this is
        for people, who ask what was there before. A count below 1 is an InvalidRequestError."""

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        """Write puts and delete-column markers at their own timestamps.
        Repeating the call changes nothing, but for the times of puts without one. With by_row the
        edits of each row take effect at once; else nothing is promised, not even within a row.
        Where the store lacks `row_mutations` by_row is an InvalidRequestError."""

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """For each check: if the cell has the expected value, put the cells at the server's time.
        An empty expectation is met by an absent cell and by an empty one.
        Each item is atomic in its row; the batch is not, and later items see earlier ones.
        The timestamp is never below that of the checked cell. An expected no is False.
        A check may have edits at timestamps of their own; all that it writes, it writes at once.
        Where the store lacks `row_mutations` these are an InvalidRequestError.
        With durable=False, here and in `write`, a power failure may undo the call together with
        everything after it; the next durable call makes it last, also one of no items."""

    def scan(
        self,
        table: bytes,
        start: bytes = b"",
        stop: bytes | None = None,
        columns: Columns = None,
        exclude: RowExclusion | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows from start (included) to stop (excluded) in byte order, lazily.
        Only the named (family, column) pairs, if given; rows without a visible cell are skipped.
        Rows that `unless` leaves out are not yielded, and where the store can tell them by itself
        they are not sent either. Its cell must be among the columns, if these are given; else it is
        an InvalidRequestError.
        reverse: yield the same rows, start still included and stop still excluded, from the last
        to the first. A reader that takes only a few then gets the last ones without reading the
        others."""

    def atomically(self, work: Callable[[], None]) -> None:
        """Run a function that uses this store; what it does may take effect all at once.
        It may be run again, from its start, if nothing of it has taken effect.
        With `atomic_together` it does take effect at once, for all other clients and a power
        failure alike: when the call returns, or, if the function raises, not at all, and what it
        raised is raised. Nobody else can write meanwhile, so the function must not wait. It is
        durable if one of the calls in it was. An error after the function's end leaves open
        whether it took effect, unless it is NotApplied; but nothing takes effect later. Within
        the function `together` just runs what it is given."""

    def list_tables(self) -> list[bytes]:
        """Return the names of all tables but the system's own, in byte order."""

    def describe(self, table: bytes) -> Mapping[bytes, Family] | None:
        """Return the table's families and their settings, or None for an absent table."""

    def ensure_table(
        self, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
    ) -> None:
        """Create the table and the families that are missing. Repeating the call changes nothing.
        Raise InvalidRequestError where an existing family's settings differ, or where the table
        belongs to another database. A store on this machine gives one to families without."""

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        """Return rows between start and stop at which a range may be divided, to be read in parts:
        in order, each once, neither end among them. Where the store itself is divided, as HBase is
        into regions, they are where its parts begin, and else at most so many. They are a hint:
        none at all are right as well."""

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        """Drop delete markers older than this, unless the store does so by itself in time."""

    def close(self) -> None:
        """Release connections and files; the store cannot be used afterwards."""


@runtime_checkable
class TableAssigner(Protocol):
    """A store that can change which database a table belongs to."""

    def assign_table(self, table: bytes, database: bytes) -> None:
        """Let all families of a table belong to the database with this transaction table."""


class CallWrapper(Protocol):
    """A store around another one, `_inner`, that does something at each call."""

    _inner: Store

    def _around(self, name: str, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Make the call of this method, or not, and return its result. items: the keys, edits or
        checks that it is given, or its table."""


def wrap_call(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a CallWrapper: the one of the contract, of the store within, by way of
    `_around`."""
    name = method.__name__

    @wraps(method)
    def call(self: CallWrapper, /, *args: Any, **kwargs: Any) -> T:
        inner: Callable[..., T] = getattr(self._inner, name)
        result = self._around(name, _list_items(name, args), lambda: inner(*args, **kwargs))
        return cast(T, result)

    return cast(Callable[Concatenate[Any, P], T], call)


def _list_items(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    match name, args:
        case "read", groups:
            return tuple(key for keys in groups for key in keys)
        case _, [bytes() as table, *_]:
            return (table,)
        case "atomically" | "list_tables", _:
            return ()
        case _, [items, *_]:
            return tuple(items)
        case _:
            return ()
