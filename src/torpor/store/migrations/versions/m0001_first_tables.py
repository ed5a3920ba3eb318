"""The first tables: sessions, snapshots, events, operations, tokens and samples."""

import sqlalchemy as sa
from alembic import op

from torpor.store.columns import ID_TEXT

revision = "0001"
down_revision = None

_HOLDS_ITS_NAME = sa.text("(status NOT IN ('DESTROYED', 'FAILED'))")


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("image", sa.Text, nullable=False),
        sa.Column("size", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", ID_TEXT, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("env", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("idle_timeout", sa.BigInteger),
        sa.Column("keep_warm", sa.Boolean, nullable=False),
        sa.Column("pause_reason", sa.Text),
        sa.Column("parent", ID_TEXT),
        sa.Column("fork_id", ID_TEXT),
        sa.Column("forked_from", ID_TEXT),
        sa.Column("machine", ID_TEXT),
        sa.Column("snapshot", ID_TEXT),
        sa.Column("boot_id", ID_TEXT),
        sa.Column("failure", sa.Text),
        sa.Column("last_event_at", sa.BigInteger),
        sa.Column("defaults", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.ForeignKeyConstraint(["parent"], ["sessions.id"], name="fk_sessions_parent"),
    )
    op.create_index("ix_sessions_created_at_id", "sessions", ["created_at", "id"])
    op.create_index("ix_sessions_status_created_at_id", "sessions", ["status", "created_at", "id"])
    for column in ("parent", "machine", "snapshot"):
        op.create_index(f"ix_sessions_{column}", "sessions", [column])
    op.create_index(
        "uq_sessions_held_name",
        "sessions",
        [sa.text("lower(name)")],
        unique=True,
        sqlite_where=_HOLDS_ITS_NAME,
        postgresql_where=_HOLDS_ITS_NAME,
    )
    op.create_table(
        "session_labels",
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("key", ID_TEXT, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("session", "key", name="pk_session_labels"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_session_labels_session"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_session_labels_key_value_session", "session_labels", ["key", "value", "session"]
    )
    op.create_table(
        "snapshots",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("checkpoint", ID_TEXT),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("parent", ID_TEXT),
        sa.Column("event", ID_TEXT),
        sa.Column("error", sa.Text),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("durable", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_snapshots"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_snapshots_session"),
        sa.UniqueConstraint("checkpoint", name="uq_snapshots_checkpoint"),
    )
    op.create_index("ix_snapshots_parent", "snapshots", ["parent"])
    op.create_index(
        "ix_snapshots_session_created_at_id", "snapshots", ["session", "created_at", "id"]
    )
    op.create_table(
        "events",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("session", ID_TEXT),
        sa.Column("actor", ID_TEXT),
        sa.Column("data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_events_at", "events", ["at"])
    op.create_index("ix_events_session_id", "events", ["session", "id"])
    op.create_table(
        "operations",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("actor", ID_TEXT, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("session", ID_TEXT),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("key", ID_TEXT),
        sa.Column("digest", sa.Text),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("ended_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
        sa.UniqueConstraint("actor", "key", name="uq_operations_actor_key"),
    )
    op.create_index("ix_operations_ended_at", "operations", ["ended_at"])
    op.create_table(
        "tokens",
        sa.Column("id", ID_TEXT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("revoked_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "samples",
        sa.Column("session", ID_TEXT, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("machine", ID_TEXT),
        sa.Column("vcpu", sa.Float, nullable=False),
        sa.Column("waited", sa.Float, nullable=False),
        sa.Column("emulator", sa.Float, nullable=False),
        sa.Column("resident", sa.BigInteger, nullable=False),
        sa.Column("private", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("session", "at", name="pk_samples"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_samples_session"),
        sqlite_with_rowid=False,
    )
