"""Workspaces that outlive sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "workspaces",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("updated_by", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("session", sa.Text),
        sa.Column("saved_at", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
        sa.UniqueConstraint("session", name="uq_workspaces_session"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_workspaces_session"),
    )
    op.create_index("ix_workspaces_created_at_id", "workspaces", ["created_at", "id"])
    op.create_index(
        "ix_workspaces_state_created_at_id", "workspaces", ["state", "created_at", "id"]
    )
    op.add_column("sessions", sa.Column("workspace", sa.Text))
    op.add_column("snapshots", sa.Column("workspace", sa.Text))
