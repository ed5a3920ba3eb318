"""Hosts, who holds each, and which one a session, an operation and a build belong to."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "hosts",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("url", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", ID_TEXT),
        sa.Column("lease_until", sa.BigInteger),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_hosts"),
    )
    op.add_column("sessions", sa.Column("host", ID_TEXT))
    op.create_index("ix_sessions_host_status", "sessions", ["host", "status"])
    op.add_column("operations", sa.Column("host", ID_TEXT))
    op.add_column("template_builds", sa.Column("host", ID_TEXT))
