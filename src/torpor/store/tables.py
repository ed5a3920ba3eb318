"""The tables: one for each record of ``records.py``, with a column of the same name for each field.

What stands here is what the newest migration leaves; a test compares them.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    and_,
    func,
)

from torpor.store.columns import Document, Moment, StatusWord
from torpor.store.records import Status

NAMELESS = (Status.DESTROYED, Status.FAILED)
"""The statuses in which a session has given up its name to whoever wants it."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("status", StatusWord, nullable=False),
    Column("image", Text, nullable=False),
    Column("size", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("used_at", Moment, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("agent", Text, nullable=False),
    Column("env", Document, nullable=False),
    Column("labels", Document, nullable=False),
    Column("metadata", Document, nullable=False),
    Column("idle_timeout", BigInteger),
    Column("keep_warm", Boolean, nullable=False),
    Column("pause_reason", Text),
    Column("parent", Text, ForeignKey("sessions.id"), index=True),
    Column("fork_id", Text),
    Column("forked_from", Text),
    Column("machine", Text, index=True),
    Column("snapshot", Text, index=True),
    Column("boot_id", Text),
    Column("failure", Text),
    Column("last_event_at", Moment),
    Column("defaults", Document, nullable=False),
    Column("config", Text),
    Column("template", Text),
)
Index("ix_sessions_created_at_id", sessions.c.created_at, sessions.c.id)
Index("ix_sessions_status_created_at_id", sessions.c.status, sessions.c.created_at, sessions.c.id)
Index("ix_sessions_config_created_at_id", sessions.c.config, sessions.c.created_at, sessions.c.id)
_named = sessions.c.status.not_in(NAMELESS)
Index(
    "uq_sessions_held_name",
    func.lower(sessions.c.name),
    unique=True,
    sqlite_where=_named,
)

configs = Table(
    "configs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("schema_version", Text, nullable=False),
    Column("manifest", Document, nullable=False),
    Column("insights", Document),
    Column("implicit", Boolean, nullable=False),
    Column("deleted_at", Moment),
)
Index("ix_configs_created_at_id", configs.c.created_at, configs.c.id)
Index("ix_configs_content_hash_implicit", configs.c.content_hash, configs.c.implicit)
_listed = and_(configs.c.deleted_at.is_(None), configs.c.implicit.is_(False))
Index(
    "uq_configs_held_name",
    func.lower(configs.c.name),
    unique=True,
    sqlite_where=_listed,
)

session_labels = Table(
    "session_labels",
    metadata,
    Column("session", Text, ForeignKey("sessions.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""The labels of ``sessions`` once more, to find sessions by them; written with each change."""
Index(
    "ix_session_labels_key_value_session",
    session_labels.c.key,
    session_labels.c.value,
    session_labels.c.session,
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("status", Text, nullable=False),
    Column("checkpoint", Text, unique=True),
    Column("label", Text, nullable=False),
    Column("parent", Text, index=True),
    Column("event", Text),
    Column("error", Text),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("durable", Boolean, nullable=False),
)
Index(
    "ix_snapshots_session_created_at_id",
    snapshots.c.session,
    snapshots.c.created_at,
    snapshots.c.id,
)

events = Table(
    "events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("at", Moment, nullable=False, index=True),
    Column("session", Text),
    Column("actor", Text),
    Column("data", Document, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_events_session_id", events.c.session, events.c.id)

operations = Table(
    "operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("session", Text),
    Column("state", Text, nullable=False),
    Column("key", Text),
    Column("digest", Text),
    Column("plan", Document, nullable=False),
    Column("result", Document, nullable=False),
    Column("error", Text),
    Column("ended_at", Moment, index=True),
    UniqueConstraint("actor", "key"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("used_at", Moment),
    Column("revoked_at", Moment),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("purpose", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
)
Index("ix_keys_purpose_created_at", keys.c.purpose, keys.c.created_at)

transfers = Table(
    "transfers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False, index=True),
    Column("created_by", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("archive", Boolean, nullable=False),
    Column("status", Text, nullable=False, index=True),
    Column("part_size", BigInteger),
    Column("size", BigInteger),
    Column("sha256", Text),
    Column("done_bytes", BigInteger, nullable=False),
    Column("error", Text),
)
Index("ix_transfers_session_status", transfers.c.session, transfers.c.status)

transfer_parts = Table(
    "transfer_parts",
    metadata,
    Column("transfer", Text, ForeignKey("transfers.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    sqlite_with_rowid=False,
)

preview_links = Table(
    "preview_links",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False, index=True),
    Column("port", BigInteger, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Moment, nullable=False, index=True),
    Column("revoked_at", Moment),
)

samples = Table(
    "samples",
    metadata,
    Column("session", Text, ForeignKey("sessions.id"), primary_key=True),
    Column("at", Moment, primary_key=True),
    Column("machine", Text),
    Column("vcpu", Float, nullable=False),
    Column("waited", Float, nullable=False),
    Column("emulator", Float, nullable=False),
    Column("resident", BigInteger, nullable=False),
    Column("private", BigInteger, nullable=False),
    Column("stored", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

templates = Table(
    "templates",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("base", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("current_build", Text),
    Column("deleted_at", Moment),
)
Index("ix_templates_created_at_id", templates.c.created_at, templates.c.id)
Index(
    "uq_templates_held_name",
    func.lower(templates.c.name),
    unique=True,
    sqlite_where=templates.c.deleted_at.is_(None),
)

template_builds = Table(
    "template_builds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("template", Text, ForeignKey("templates.id"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("status", Text, nullable=False, index=True),
    Column("base", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("manifest", Text),
    Column("image", Text),
    Column("error", Text),
)
Index(
    "ix_template_builds_template_created_at_id",
    template_builds.c.template,
    template_builds.c.created_at,
    template_builds.c.id,
)

template_lines = Table(
    "template_lines",
    metadata,
    Column("build", Text, ForeignKey("template_builds.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("text", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""What was told while a template was built, line by line."""
