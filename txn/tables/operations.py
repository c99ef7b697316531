"""Requests of plain HBase clients to tables, their results, and the reasons of a refusal.

Timestamps are milliseconds; None is the server's time. An empty column name is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from txn.errors import InvalidRequestError, annotate
from txn.tables.cells import FOREVER, CellVersion

MAX_TIMESTAMP = FOREVER

Operator = Literal["<", "<=", "=", "!=", ">=", ">", "no-op"]

Reason = Literal[
    "table not found",
    "table exists",
    "table not enabled",
    "table not disabled",
    "no such column family",
    "namespace not found",
    "namespace exists",
    "constraint",
    "illegal argument",
    "do not retry",
    "retries exhausted",
]


class Refused(InvalidRequestError):
    """The request can never succeed as it is; `reason` names HBase's error.

    `illegal argument`: HBase's client finds it before it sends anything (IllegalArgumentException).
    `do not retry`: only the server finds it.
    `constraint`: the server's ConstraintException (namespaces).
    `retries exhausted`: the server fails in a way that its clients retry, in vain, for a minute.
    """

    def __init__(self, reason: Reason, message: str, **facts: object) -> None:
        super().__init__(annotate(message, **facts))
        self.reason: Reason = reason
        self.facts = facts


class Result(NamedTuple):
    """A row's versions in HBase's order; empty for an absent row. partial: more of the row follows
    in the next result (`Selection.batch`)."""

    row: bytes
    versions: tuple[CellVersion, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter's name and typed arguments; for AND, OR, SKIP and WHILE these are filters.

    AND takes the furthest step of its filters, OR the nearest. SKIP leaves out a row if its filter
    leaves out any part of it. WHILE ends the scan there.
    """

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted part of each row.

    columns: () for all; (family, None) is a whole family, which HBase forgets if a column of that
    family follows.
    versions: at most so many of each cell.
    since (included), until (excluded): timestamps.
    family_times: (family, since, until) overrides them for some families.
    filter: a result of `parse_filter`.
    store_limit, store_offset: the most versions of each family in a row, after skipping so many.
    batch: the most versions in a result of a scan; a larger row comes as several results.
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
    """The rows of a scan; an empty bound is open. If reversed, start is the greater one."""

    start: bytes = b""
    stop: bytes = b""
    include_stop: bool = False
    reverse: bool = False


class Put(NamedTuple):
    """Write a version. ttl_ms: it expires so long after its timestamp, or earlier by the family's
    TTL; None: by the family's TTL alone."""

    family: bytes
    column: bytes
    value: bytes
    timestamp: int | None = None
    ttl_ms: int | None = None


class Remove(NamedTuple):
    """Delete versions, also later arrivals with such timestamps.

    family None: the whole row; column None: the whole family.
    exact: only the version with exactly that timestamp (None: the newest visible one; two of them
    in one mutation delete the two newest). Otherwise all at or below the timestamp (None: now).
    """

    family: bytes | None = None
    column: bytes | None = None
    timestamp: int | None = None
    exact: bool = False


class Add(NamedTuple):
    """Add to a big-endian 64-bit number; an absent one counts as 0. ttl_ms: as of a Put; None keeps
    the TTL of the replaced version."""

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
Operations = Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a cell of a row.

    As in HBase the expected value is on the left: `value operator cell`. A value of None or b"" is
    HBase's null check: it holds for an absent or empty cell, or with `!=` for any other. An absent
    cell meets no condition with another value, not even `!=`. HBase refuses "no-op" for two values.
    """

    family: bytes = b""
    column: bytes = b""
    operator: Operator = "="
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class FamilySettings:
    """All settings that HBase shows of a column family, with its defaults. ttl_ms None: for ever.

    Only versions, min_versions and ttl_ms have an effect; the others are only shown. Other values
    of keep_deleted_cells, and new_version_behavior, are refused. attributes are ISO 8859-1 text.
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
    attributes: tuple[tuple[str, str], ...] = ()
    configuration: tuple[tuple[str, str], ...] = ()
