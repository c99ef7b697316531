"""The table of leases, and conditions that match its rows, for all supported databases.

A row is one object of a lease or of a waiting request. Its key is the number of the lease (or of
the place in the queue) and the object's path as text. These texts are ASCII without `/` within a
part, so the objects in `a/b` are exactly those from `a/b/` up to, but not including, `a/b0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator

from txn.locks.model import LockRequest, Mode, Path

IDS = "txn_lease_ids"
BATCH = 100
"""Objects per statement: SQLite limits the depth of expressions."""


class Utc(TypeDecorator[datetime]):
    """An instant, in microseconds. SQLite stores it as UTC text, which sorts like the times."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> datetime | None:
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class now(FunctionElement[datetime]):
    type = Utc()
    inherit_cache = True


@compiles(now, "postgresql")
def _now_of_postgresql(*_: Any, **__: Any) -> str:
    return "clock_timestamp()"


@compiles(now, "sqlite")
def _now_of_sqlite(*_: Any, **__: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


metadata = sa.MetaData()
leases = sa.Table(
    "txn_leases",
    metadata,
    sa.Column("lease_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column(
        "object", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True
    ),
    sa.Column("user_name", sa.Text, nullable=False),
    sa.Column("db_name", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("partition_name", sa.Text, nullable=False),
    sa.Column("start_utc", Utc, nullable=False),
    sa.Column("end_utc", Utc, nullable=False),
    sa.Column("lease_type", sa.String(1), nullable=False),
    sa.Column("granted", sa.Boolean, nullable=False),
    sa.Column("duration_s", sa.Double, nullable=False),
    sa.Column("token", sa.String(32), nullable=False),
    # The number of objects granted, so that the loss of one is noticed.
    sa.Column("claims", sa.Integer, nullable=False),
    sa.Index("txn_leases_object", "object"),
    sa.Index("txn_leases_end_utc", "end_utc"),
    sa.Index("txn_leases_token", "token"),
)


@sa.event.listens_for(leases, "after_create")
def _create_ids(_: sa.Table, connection: sa.Connection, **__: Any) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"CREATE SEQUENCE {IDS}"))
    else:
        connection.execute(sa.text(f"CREATE TABLE {IDS} (last INTEGER NOT NULL)"))
        connection.execute(sa.text(f"INSERT INTO {IDS} VALUES (0)"))


def match_within(objects: Iterable[Path]) -> sa.ColumnElement[bool]:
    """Match the rows of these objects (at least one) and of all that they contain."""
    names = [str(each) for each in objects]
    inside = (
        sa.and_(leases.c.object >= f"{name}/", leases.c.object < f"{name}0") for name in names
    )
    return sa.or_(leases.c.object.in_(names), *inside)


def match_overlaps(objects: Sequence[Path]) -> sa.ColumnElement[bool]:
    """Match the rows that could deny one of these objects (at least one) to a request: those of
    `match_within`, and exclusive ones of the containing objects."""
    parents = chain.from_iterable(each.parents for each in objects)
    return sa.or_(match_within(objects), _match_exclusive(parents))


def match_conflicts(requests: Sequence[LockRequest]) -> sa.ColumnElement[bool]:
    """Match rows that conflict with at least one request: exclusive ones of its object and of what
    contains it; for an exclusive request, all rows of its object and within it."""
    objects = [each.path for each in requests]
    alone = [each.path for each in requests if each.mode is Mode.EXCLUSIVE]
    is_exclusive = _match_exclusive(chain(objects, *(each.parents for each in objects)))
    return sa.or_(is_exclusive, match_within(alone)) if alone else is_exclusive


def _match_exclusive(objects: Iterable[Path]) -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.object.in_(sorted(map(str, set(objects)))), leases.c.lease_type == "x")
