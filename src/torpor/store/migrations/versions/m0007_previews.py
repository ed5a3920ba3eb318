"""Links to ports of sessions."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "preview_links",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("port", sa.BigInteger, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_preview_links"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_preview_links_session"),
    )
    op.create_index("ix_preview_links_session", "preview_links", ["session"])
    op.create_index("ix_preview_links_expires_at", "preview_links", ["expires_at"])
