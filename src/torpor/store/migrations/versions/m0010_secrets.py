"""Secrets, and which sessions have which."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("updated_by", ID_TEXT, nullable=False),
        sa.Column("bindings", sa.Text, nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("key", ID_TEXT, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_secrets"),
        sa.UniqueConstraint("name", name="uq_secrets_name"),
    )
    op.create_table(
        "session_secrets",
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("secret", ID_TEXT, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("although_open", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("session", "secret", name="pk_session_secrets"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_session_secrets_session"),
        sa.ForeignKeyConstraint(["secret"], ["secrets.id"], name="fk_session_secrets_secret"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_session_secrets_secret", "session_secrets", ["secret"])
