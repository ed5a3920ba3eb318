"""Workspaces that outlive sessions."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "workspaces",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("updated_by", ID_TEXT, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("session", ID_TEXT),
        sa.Column("saved_at", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("host", ID_TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
        sa.UniqueConstraint("session", name="uq_workspaces_session"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_workspaces_session"),
    )
    op.create_index("ix_workspaces_created_at_id", "workspaces", ["created_at", "id"])
    op.create_index(
        "ix_workspaces_state_created_at_id", "workspaces", ["state", "created_at", "id"]
    )
    op.add_column("sessions", sa.Column("workspace", ID_TEXT))
    op.add_column("snapshots", sa.Column("workspace", ID_TEXT))
