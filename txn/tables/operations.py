"""Requests of plain HBase clients to tables, and their results: frozen data, no I/O.

Timestamps are milliseconds; None is the server's time. Families and columns are bytes; an empty
column is a column like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from txn.tables.cells import FOREVER, CellVersion
from txn.tables.filters.parsing import Expression

MAX_TIMESTAMP = FOREVER

Operator = Literal["<", "<=", "=", "!=", ">=", ">", "no-op"]


class Result(NamedTuple):
    """A row as found, in HBase's order: family, column, newest first; nothing there: no versions.

    partial: more of this row follows in the next result (`Selection.batch`).
    """

    row: bytes
    versions: tuple[CellVersion, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted part of each row.

    columns: () means all; (family, None) a whole family, which HBase forgets when a column of that
    family follows. versions: at most so many of each cell. since (included), until (excluded): the
    timestamps; family_times: those of some families instead, each (family, since, until). filter:
    what `parse_filter` returns. store_limit, store_offset: at most so many versions of each family
    in a row, after leaving out so many. batch: a scan's results hold at most so many versions; a
    row of more comes as several results.
    """

    columns: tuple[tuple[bytes, bytes | None], ...] = ()
    versions: int = 1
    since: int = 0
    until: int = MAX_TIMESTAMP
    filter: Expression | None = None
    store_limit: int | None = None
    store_offset: int = 0
    batch: int | None = None
    family_times: tuple[tuple[bytes, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """The rows of a scan; empty: from the first, to the last. Reversed, start is the greater."""

    start: bytes = b""
    stop: bytes = b""
    include_start: bool = True
    include_stop: bool = False
    reverse: bool = False


class Put(NamedTuple):
    """Write a version. ttl_ms: it is gone so long after its timestamp, if not before; None: by the
    family's TTL alone."""

    family: bytes
    column: bytes
    value: bytes
    timestamp: int | None = None
    ttl_ms: int | None = None


class Remove(NamedTuple):
    """Delete versions, also those that arrive later with such a timestamp.

    family None: of the whole row; column None: of the whole family. exact: only the version of
    exactly that timestamp (None: of the newest visible one; two of them in one mutation: the two
    newest). Otherwise all at or below the timestamp (None: now).
    """

    family: bytes | None = None
    column: bytes | None = None
    timestamp: int | None = None
    exact: bool = False


class Add(NamedTuple):
    """Add to a number of 64 bits, big-endian; an absent one counts as 0.

    ttl_ms: as of a Put; None keeps that of the version which is added to.
    """

    family: bytes
    column: bytes
    by: int
    ttl_ms: int | None = None


class Append(NamedTuple):
    """Append to the value; an absent one counts as empty. ttl_ms: as of an Add."""

    family: bytes
    column: bytes
    value: bytes
    ttl_ms: int | None = None


Operation = Put | Remove | Add | Append


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a row: on one cell, or (filter) that the row passes the filter.

    As in HBase the expected value stands on the left: `value operator cell`. A value of None or
    of no bytes is HBase's null check: it holds for an absent or empty cell, or with `!=` for any
    other. An absent cell never holds against any other value, `!=` included. HBase refuses "no-op"
    only where there are two values to compare. since, until: the
    timestamps that are looked at.
    """

    family: bytes = b""
    column: bytes = b""
    operator: Operator = "="
    value: bytes | None = None
    filter: Expression | None = None
    since: int = 0
    until: int = MAX_TIMESTAMP


@dataclass(frozen=True, slots=True)
class FamilySettings:
    """All that HBase shows of a column family, with HBase's defaults. ttl_ms None: for ever.

    Only versions, min_versions and ttl_ms mean anything here; the rest is kept to be shown. Other
    values of keep_deleted_cells than FALSE, and new_version_behavior, are refused.
    """

    versions: int = 1
    min_versions: int = 0
    ttl_ms: int | None = None
    keep_deleted_cells: str = "FALSE"
    new_version_behavior: bool = False
    compression: str = "NONE"
    bloom_filter: str = "ROW"
    data_block_encoding: str = "NONE"
    block_size: int = 65536
    in_memory: bool = False
    block_cache: bool = True
    scope: int = 0
    dfs_replication: int = 0
    cache_blooms_on_write: bool = False
    cache_data_on_write: bool = False
    cache_indexes_on_write: bool = False
    compress_tags: bool = True
    evict_blocks_on_close: bool = False
    prefetch_blocks_on_open: bool = False
    attributes: tuple[tuple[bytes, bytes], ...] = ()
    configuration: tuple[tuple[str, str], ...] = ()
