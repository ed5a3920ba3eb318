"""What sessions may reach, what was decided about it, and where their data went."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("egress", sa.Text))
    op.add_column("sessions", sa.Column("names", sa.Text))
    op.create_table(
        "egress_log",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("transport", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("port", sa.BigInteger, nullable=False),
        sa.Column("allowed", sa.Boolean, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("add", sa.Text, nullable=False),
        sa.Column("spoken", sa.Text),
        sa.Column("address", sa.Text),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("received_bytes", sa.BigInteger, nullable=False),
        sa.Column("inspected", sa.Boolean, nullable=False),
        sa.Column("secrets", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_egress_log"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_egress_log_session"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_egress_log_session_id", "egress_log", ["session", "id"])
    op.create_index("ix_egress_log_at", "egress_log", ["at"])
    op.create_table(
        "flows",
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("kind", ID_TEXT, nullable=False),
        sa.Column("name", ID_TEXT, nullable=False),
        sa.Column("first_at", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.BigInteger, nullable=False),
        sa.Column("connections", sa.BigInteger, nullable=False),
        sa.Column("denied", sa.BigInteger, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("received_bytes", sa.BigInteger, nullable=False),
        sa.Column("inspected", sa.Boolean, nullable=False),
        sa.Column("secrets", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("session", "kind", "name", name="pk_flows"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_flows_session"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "traffic",
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("host", ID_TEXT, nullable=False),
        sa.Column("sent_bytes", sa.BigInteger, nullable=False),
        sa.Column("received_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("session", "at", "host", name="pk_traffic"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_traffic_session"),
        sqlite_with_rowid=False,
    )
