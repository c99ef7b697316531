"""Write the names of databases, tables and partition columns in lower case, as they are compared.

Two objects of one lease that are one now become one row: the stronger claim, and the later end.
Leases of different ids on what is one object now are all kept until they end; none is granted
beside them.
"""

from collections import defaultdict
from typing import Any

import sqlalchemy as sa
from alembic import op

from txn.locks.requests import lower_names, parts_of, text_of

revision = "v0002"
down_revision = "v0001"

TABLE = "txn_leases"


def upgrade() -> None:
    """Rewrite the rows that have upper case in a name."""
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.execute(f"LOCK TABLE {TABLE} IN SHARE ROW EXCLUSIVE MODE")
    table = sa.Table(TABLE, sa.MetaData(), autoload_with=connection)
    one = defaultdict(list)
    for row in connection.execute(sa.select(table)).mappings():
        one[row["lease_id"], text_of(_parts(row))].append(row)
    for (lease_id, name), rows in one.items():
        if [row["object"] for row in rows] == [name]:
            continue
        db, of_db, *partition = _parts(rows[0])
        old = table.c.object.in_([row["object"] for row in rows])
        connection.execute(sa.delete(table).where(table.c.lease_id == lease_id, old))
        changed = {
            "object": name,
            "db_name": db,
            "table_name": of_db,
            "partition_name": text_of(partition),
            "end_utc": max(row["end_utc"] for row in rows),
            "lease_type": max(row["lease_type"] for row in rows),
        }
        connection.execute(sa.insert(table).values({**rows[0], **changed}))


def downgrade() -> None:
    """Nothing tells how the names were written; lower case is as good."""


def _parts(row: Any) -> tuple[str, ...]:
    partition = parts_of(row["partition_name"]) if row["partition_name"] else ()
    return lower_names((row["db_name"], row["table_name"], *partition))
