"""Templates and their builds."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0004"
down_revision = "0003"

_LIVES = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "templates",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("base", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("current_build", ID_TEXT),
        sa.Column("deleted_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_templates"),
    )
    op.create_index("ix_templates_created_at_id", "templates", ["created_at", "id"])
    op.create_index(
        "uq_templates_held_name",
        "templates",
        [sa.text("lower(name)")],
        unique=True,
        sqlite_where=_LIVES,
        postgresql_where=_LIVES,
    )

    op.create_table(
        "template_builds",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("template", ID_TEXT, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("base", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text),
        sa.Column("image", sa.Text),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_template_builds"),
        sa.ForeignKeyConstraint(["template"], ["templates.id"], name="fk_template_builds_template"),
    )
    op.create_index(
        "ix_template_builds_template_created_at_id",
        "template_builds",
        ["template", "created_at", "id"],
    )
    op.create_index("ix_template_builds_status", "template_builds", ["status"])

    op.create_table(
        "template_lines",
        sa.Column("build", ID_TEXT, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("build", "number", name="pk_template_lines"),
        sa.ForeignKeyConstraint(["build"], ["template_builds.id"], name="fk_template_lines_build"),
        sqlite_with_rowid=False,
    )

    op.add_column("sessions", sa.Column("template", ID_TEXT))
