"""Keys that what is signed is signed with."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("secret", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )
    op.create_index("ix_keys_purpose_created_at", "keys", ["purpose", "created_at"])
