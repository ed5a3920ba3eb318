"""Large files on their way into sessions and out of them."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0006"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "transfers",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("direction", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("archive", sa.Boolean, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("part_size", sa.BigInteger),
        sa.Column("size", sa.BigInteger),
        sa.Column("sha256", sa.Text),
        sa.Column("done_bytes", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_transfers"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_transfers_session"),
    )
    op.create_index("ix_transfers_expires_at", "transfers", ["expires_at"])
    op.create_index("ix_transfers_status", "transfers", ["status"])
    op.create_index("ix_transfers_session_status", "transfers", ["session", "status"])
    op.create_table(
        "transfer_parts",
        sa.Column("transfer", ID_TEXT, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("transfer", "number", name="pk_transfer_parts"),
        sa.ForeignKeyConstraint(["transfer"], ["transfers.id"], name="fk_transfer_parts_transfer"),
        sqlite_with_rowid=False,
    )
