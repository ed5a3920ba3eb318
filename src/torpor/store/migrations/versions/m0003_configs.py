"""Configurations, and which one a session was made of."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "configs",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("schema_version", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("insights", sa.Text),
        sa.Column("implicit", sa.Boolean, nullable=False),
        sa.Column("deleted_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_configs"),
    )
    op.create_index("ix_configs_created_at_id", "configs", ["created_at", "id"])
    op.create_index("ix_configs_content_hash_implicit", "configs", ["content_hash", "implicit"])
    op.create_index(
        "uq_configs_held_name",
        "configs",
        [sa.text("lower(name)")],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL AND implicit IS 0"),
        postgresql_where=sa.text("deleted_at IS NULL AND implicit IS false"),
    )
    op.add_column("sessions", sa.Column("config", ID_TEXT))
    op.create_index("ix_sessions_config_created_at_id", "sessions", ["config", "created_at", "id"])
