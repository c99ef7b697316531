"""The contract between the protocol and the store that keeps the cells.

Every call is a batch. A call that returns has taken effect for all other clients. `NotApplied`
means that it had no effect and never will. Any other error means that it may have taken effect, or
still may.

Calls fail with a StoreError. The protocol checks with `describe`, before it writes, everything that
the author of a request can change. A table that goes missing or is disabled after that is a
`TableUnavailable`, which names it. An InvalidRequestError is for calls that no store could take,
such as a row that is too long or a checked put of two rows; then nothing was done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import chain
from typing import (
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

from txn.errors import MaybeApplied, NotApplied, StoreClosedError
from txn.model import Cell, Check, Columns, Edit, Family, Key, Row, RowExclusion, Stamp, new_tuple

Feature = Literal[
    "multi_cell_check",
    "row_mutations",
    "describe",
    "instant_reads",
    "atomic",
    "remote_calls",
    "many_row_checks",
]
"""What a store can do:
multi_cell_check: a checked write can write any cells of its row
row_mutations: a checked write can delete and set timestamps; a row's edits can be atomic
describe: `describe` shows all settings that matter
instant_reads: all cells of a `read` come from one instant
atomic: everything that a function does inside `atomically` is one transaction
remote_calls: a call is a request to a server, so calls that are not urgent should share one
many_row_checks: `put_if_all` can do more than single checks"""

Families = Mapping[bytes, Family]
"""The settings of a table's families, by name."""

Answers = tuple[list[bool], dict[Key, Cell | None], dict[Key, Stamp | None]]
"""The result of a `check_and_read`: whether each check was met, the cells, and the stamps."""

P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol):
    """Cells of tables, as HBase keeps them."""

    @property
    def features(self) -> frozenset[Feature]: ...

    def read(self, *groups: Collection[Key]) -> dict[Key, Cell | None]:
        """Return the newest visible version of each key, and None for each absent key.
        Cells of one row in one group come from one instant. No cell of a group is read before all
        earlier groups were read."""

    def read_versions(self, keys: Collection[Key], count: int) -> dict[Key, list[Cell]]:
        """Return up to `count` visible versions of each key, newest first; an absent key has none.
        A family also limits how many versions it keeps. Versions of one row and family come from
        one instant, except through a Thrift 1 gateway. The protocol needs only the newest version;
        this is for people who ask what was there before. A count below 1 is an
        InvalidRequestError."""

    def write(self, edits: Sequence[Edit], *, durable: bool = True, by_row: bool = False) -> None:
        """Write puts and delete-column markers at their own timestamps.
        Repeating the call changes nothing, except the times of puts without a timestamp.
        With durable=False, here and in the other calls, a power failure may undo the call and
        everything after it. Each durable `write` makes all before it durable, and fails unless it
        did: even one without edits writes something, since a repeated flush proves nothing.
        by_row: the edits of each row take effect at once; otherwise nothing is atomic, not even
        within a row. It is an InvalidRequestError if the store lacks `row_mutations`."""

    def check_and_put(self, checks: Sequence[Check], *, durable: bool = True) -> list[bool]:
        """For each check: if the cell has the expected value, put the cells at the server's time.
        An absent cell and an empty one both meet an empty expectation. An expected no is False;
        a check without a condition is always True.
        Each item is atomic in its row; the batch is not. Items of one row that have a
        condition are carried out in order.
        A put of the checked cell is never older than that, unless that is empty: then the server
        may put it below, where it does not show.
        A check may also have edits with timestamps of their own. All of its writes take effect at
        once. If the store lacks `row_mutations`, such edits are an InvalidRequestError beside a
        condition, and without one they take effect one by one.
        Deferred checks are for stores whose tables have several logs; others treat them as any."""

    def put_if_all(self, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
        """For each group: if all its cells have the expected values, make its edits, all at one
        instant, durably. Return True if so; False if a cell has another value, and nothing was
        done; None if this store cannot do these checks together, and did nothing.
        Each check has a condition and no `puts`; it may have no edits. Groups are independent.
        Local stores can do all, gateways single checks, and HBase itself those of one region."""

    def check_and_read(
        self,
        checks: Sequence[Check],
        keys: Collection[Key],
        stamps: Collection[Key] = (),
        *,
        durable: bool = True,
    ) -> Answers:
        """Do a `check_and_put` and a `read` of one group, in one round where the store can. The
        checks are carried out before the read or during it.
        stamps: other keys of the group. Their values are not returned, and a server that can leave
        them out does not send them."""

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
        columns: only these (family, column) pairs; rows without a visible cell are skipped.
        exclude: skip rows that it matches; the store filters them on its side where it can. Its
        cell must be among the columns, if these are given; otherwise it is an InvalidRequestError.
        reverse: yield the same rows from last to first; start is still included and stop excluded.
        A caller that takes only a few rows reads only the last ones."""

    def atomically(self, work: Callable[[], None]) -> None:
        """Run a function that uses this store; its effects may become visible all at once.
        The function may run again from its start if none of its effects were kept.
        With the feature `atomic`, its effects do appear at once, for all other clients and after a
        power failure: when the call returns, or not at all if the function raises. Its exception
        propagates. No other client can write meanwhile, so the function must not wait. The result
        is durable if one of its calls was. An error after the function's end leaves open whether it
        took effect, unless it is NotApplied, but nothing takes effect later. A nested call just
        runs its function."""

    def list_tables(self) -> list[bytes]:
        """Return the names of all tables except system tables, in byte order."""

    def describe(self, table: bytes) -> Families | None:
        """Return the table's families and their settings, or None for an absent table."""

    def ensure_table(self, table: bytes, families: Families, splits: Sequence[bytes] = ()) -> None:
        """Create the missing table and families; repeating the call changes nothing.
        Raise InvalidRequestError if an existing family has other settings, or the table belongs to
        another database. A local store gives this database to families without one."""

    def find_splits(
        self, table: bytes, count: int, start: bytes = b"", stop: bytes | None = None
    ) -> list[bytes]:
        """Return rows strictly between start and stop at which a range may be divided for parallel
        reads, in order and without duplicates. A store with partitions, such as HBase with its
        regions, returns their bounds; other stores return at most `count`. They are a hint: an
        empty list is always right."""

    def compact(self, table: bytes, purge_before_ms: int) -> None:
        """Drop delete markers older than this, unless the store does so by itself."""

    def close(self) -> None:
        """Release connections and files; the store cannot be used afterwards."""


@runtime_checkable
class TableAssigner(Protocol):
    """A store that can change which database a table belongs to."""

    def assign_table(self, table: bytes, database: bytes) -> None:
        """Assign all families of a table to the database with this transaction table."""


class TableSize(NamedTuple):
    """The size of a table; None: the store cannot tell. bytes_: of stored files, or of the cells
    that were counted. is_whole: whether all cells were counted; otherwise there are more."""

    regions: int | None = None
    cells: int | None = None
    bytes_: int | None = None
    is_whole: bool = True


class ColumnPage(NamedTuple):
    """Some rows of a range, in order, without an object for each cell.

    values: those of each column, by row; None: the cell is absent. rest: the start of the rest of
    the range; None: there is none.
    """

    rows: list[bytes]
    values: list[list[bytes | None]]
    rest: bytes | None = None


class ColumnReader(Protocol):
    """A store that can read a range column by column."""

    def read_columns(
        self, table: bytes, start: bytes, stop: bytes | None, columns: Sequence[tuple[bytes, bytes]]
    ) -> ColumnPage:
        """Return the first rows of a range as `scan` yields them, with the values of the columns in
        the given order. A page may have no rows although more follow."""


def find_server(store: Store, table: bytes, row: bytes) -> object | None:
    """Return the server of a row, if the store has several and knows which rows are on the same
    one; None: it is unknown. It is a hint: nothing is sent to find out."""
    find: Callable[[bytes, bytes], object | None] = getattr(store, "find_server", lambda *_: None)
    return find(table, row)


def measure_tables(store: Store, tables: Sequence[bytes]) -> Mapping[bytes, TableSize]:
    """Return the sizes of tables, as far as the store can tell them at a bounded cost."""
    measure: Callable[[Sequence[bytes]], Mapping[bytes, TableSize]]
    measure = getattr(store, "measure_tables", lambda _: {})
    return measure(tables)


def find_endpoints(store: Store) -> Mapping[bytes, bool]:
    """Return, by table, whether it names HBase's endpoint for changes of many rows of a region in
    one request. It is empty if the store needs none or cannot tell."""
    find: Callable[[], Mapping[bytes, bool]] = getattr(store, "find_endpoints", dict)
    return find()


def find_inside(store: Store) -> Callable[[], bool] | None:
    """Return a function that tells whether its thread is inside the store's `atomically`; None if
    that keeps no other thread out."""
    find: Callable[[], Callable[[], bool] | None] = getattr(store, "find_inside", lambda: None)
    return find()


def check_then_read(
    store: Store,
    checks: Sequence[Check],
    keys: Collection[Key],
    stamps: Collection[Key] = (),
    *,
    durable: bool = True,
) -> Answers:
    """Do a `check_and_read` as two calls."""
    answers = store.check_and_put(checks, durable=durable) if checks or durable else []
    with follow_checks(checks):
        return divide_found(answers, store.read([*keys, *stamps]), keys, stamps)


def put_single_checks(store: Store, groups: Sequence[Sequence[Check]]) -> list[bool | None]:
    """Do a `put_if_all` in a store that can do only single checks."""
    single = [group[0] for group in groups if len(group) == 1]
    answers = iter(store.check_and_put(single) if single else ())
    return [next(answers) if len(group) == 1 else None for group in groups]


def divide_found(
    answers: list[bool],
    found: Mapping[Key, Cell | None],
    keys: Collection[Key],
    stamps: Collection[Key],
) -> Answers:
    """Return the result of a `check_and_read` that found these cells, for stamps with any value."""
    times = {key: cell and new_tuple(Stamp, (cell[1],)) for key in stamps for cell in (found[key],)}
    return answers, {key: found[key] for key in keys}, times


@contextmanager
def follow_checks(checks: Sequence[Check]) -> Iterator[None]:
    """Make a read that was not made MaybeApplied, if checks were carried out before it."""
    try:
        yield
    except (NotApplied, StoreClosedError) as error:
        if not checks:
            raise
        raise MaybeApplied(str(error)) from error


def _wrap_call(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a StoreWrapper's method that calls the inner store's method through `_around`."""
    name = method.__name__

    @wraps(method)
    def call(self: StoreWrapper, /, *args: Any, **kwargs: Any) -> T:
        inner: Callable[..., T] = getattr(self._inner, name)
        result: T = self._around(name, _list_items(name, args), partial(inner, *args, **kwargs))
        return result

    return cast(Callable[Concatenate[Any, P], T], call)


def _list_items(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    match name, args:
        case (("read" | "check_and_read"), groups):
            return tuple(chain.from_iterable(groups))
        case "put_if_all", (groups,):
            return tuple(chain.from_iterable(groups))
        case _, [bytes() as table, *_]:
            return (table,)
        case "atomically" | "list_tables", _:
            return ()
        case _, [items, *_]:
            return tuple(items)
        case _:
            return ()


class StoreWrapper:
    """A store that wraps another one, and acts at each call in `_around`."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    read = _wrap_call(Store.read)
    read_versions = _wrap_call(Store.read_versions)
    write = _wrap_call(Store.write)
    check_and_put = _wrap_call(Store.check_and_put)
    put_if_all = _wrap_call(Store.put_if_all)
    check_and_read = _wrap_call(Store.check_and_read)
    scan = _wrap_call(Store.scan)
    atomically = _wrap_call(Store.atomically)
    list_tables = _wrap_call(Store.list_tables)
    describe = _wrap_call(Store.describe)
    ensure_table = _wrap_call(Store.ensure_table)
    find_splits = _wrap_call(Store.find_splits)
    compact = _wrap_call(Store.compact)

    @abstractmethod
    def _around(self, name: str, items: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Make the call of this method, or not; return its result. items: its arguments."""

    def find_server(self, table: bytes, row: bytes) -> object | None:
        """Return the server of a row; this is no call, since it sends nothing."""
        return find_server(self._inner, table, row)

    def measure_tables(self, tables: Sequence[bytes]) -> Mapping[bytes, TableSize]:
        return measure_tables(self._inner, tables)

    def find_endpoints(self) -> Mapping[bytes, bool]:
        return find_endpoints(self._inner)

    def find_inside(self) -> Callable[[], bool] | None:
        return find_inside(self._inner)

    def close(self) -> None:
        self._inner.close()
