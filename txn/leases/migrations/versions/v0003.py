"""Note of how many objects a lease was granted, so that the loss of one can be seen."""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"

TABLE = "txn_leases"
CLAIMS = "claims"


def upgrade() -> None:
    """Take what is left of each lease for all of it; nobody knows better."""
    op.add_column(TABLE, sa.Column(CLAIMS, sa.Integer, nullable=False, server_default="1"))
    left = f"SELECT count(*) FROM {TABLE} AS each_claim"
    op.execute(
        f"UPDATE {TABLE} SET {CLAIMS} = ({left} WHERE each_claim.lease_id = {TABLE}.lease_id)"
    )


def downgrade() -> None:
    """Leave the table as it was."""
    op.drop_column(TABLE, CLAIMS)
