"""Make the table of leases, and what their ids are taken from."""

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None

TABLE = "txn_leases"
IDS = "txn_lease_ids"


def upgrade() -> None:
    """Make both."""
    ordered = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        TABLE,
        sa.Column("lease_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("object", ordered, primary_key=True),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("db_name", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("partition_name", sa.Text, nullable=False),
        sa.Column("start_utc", sa.DateTime(timezone=True), nullable=False),
        sa.Column("end_utc", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_type", sa.String(1), nullable=False),
        sa.Column("granted", sa.Boolean, nullable=False),
        sa.Column("duration_s", sa.Double, nullable=False),
        sa.Column("token", sa.String(32), nullable=False),
    )
    for column in ("object", "end_utc", "token"):
        op.create_index(f"{TABLE}_{column}", TABLE, [column])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"CREATE SEQUENCE {IDS}")
    else:
        op.execute(f"CREATE TABLE {IDS} (last INTEGER NOT NULL)")
        op.execute(f"INSERT INTO {IDS} VALUES (0)")


def downgrade() -> None:
    """Leave the database as it was."""
    kind = "SEQUENCE" if op.get_bind().dialect.name == "postgresql" else "TABLE"
    op.execute(f"DROP {kind} {IDS}")
    op.drop_table(TABLE)
