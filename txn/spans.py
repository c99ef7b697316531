"""The extent of a scan: a range of rows of one table, and some or all of their columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from txn.errors import InvalidRequestError
from txn.model import LOCK_SUFFIX, TAG_SUFFIX, Key, as_bytes, check_items, check_key

Columns = Collection[tuple[str | bytes, str | bytes]]


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from start (included) to stop (None: the end); (family, column) pairs (None: all)."""

    table: bytes
    start: bytes = b""
    stop: bytes | None = None
    columns: frozenset[tuple[bytes, bytes]] | None = None

    def __contains__(self, key: Key) -> bool:
        return (
            key.table == self.table
            and key.row >= self.start
            and (self.stop is None or key.row < self.stop)
            and (self.columns is None or (key.family, key.column) in self.columns)
        )

    @property
    def cells(self) -> list[tuple[bytes, bytes]] | None:
        """The columns of the span's keys, with their locks and tags."""
        return self._list_cells((b"", LOCK_SUFFIX, TAG_SUFFIX))

    @property
    def values(self) -> list[tuple[bytes, bytes]] | None:
        """The columns of the span's keys with their locks only; tags matter only for held keys."""
        return self._list_cells((b"", LOCK_SUFFIX))

    def _list_cells(self, suffixes: tuple[bytes, ...]) -> list[tuple[bytes, bytes]] | None:
        if self.columns is None:
            return None
        cells = [(family, column + end) for family, column in self.columns for end in suffixes]
        return [*cells, *((family, LOCK_SUFFIX) for family in {each[0] for each in self.columns})]


Spans = Sequence[Span]


def make_span(
    table: str | bytes | None,
    start: str | bytes = b"",
    stop: str | bytes | None = None,
    prefix: str | bytes | None = None,
    columns: Columns | None = None,
) -> Span:
    """Return the span for a user's arguments; raise InvalidRequestError if they are invalid."""
    if table is None:
        raise InvalidRequestError("scan names no table and there is no default table")
    low, high = as_bytes("start", start), None if stop is None else as_bytes("stop", stop)
    if prefix is not None:
        if low or high:
            raise InvalidRequestError("a scan takes a prefix, or start and stop")
        low = as_bytes("prefix", prefix)
        high = find_prefix_end(low)
    pairs = None if columns is None else check_items("columns", columns)
    wanted = None if pairs is None else frozenset(map(_column, pairs))
    if wanted is not None and not wanted:
        raise InvalidRequestError("columns names none: leave it out for all of them")
    return Span(as_bytes("table", table), low, high or None, wanted)


def find_prefix_end(prefix: bytes) -> bytes:
    """Return the least row behind those with a prefix; b"": there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def _column(pair: object) -> tuple[bytes, bytes]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidRequestError("columns are (family, column) pairs", given=pair)
    key = check_key(Key(b"-", *pair))
    return key.family, key.column
