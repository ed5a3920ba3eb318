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
    UniqueConstraint,
    and_,
    func,
)

from torpor.store.columns import Document, Id, Listed, Moment, StatusWord, Words
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
    Column("id", Id, primary_key=True),
    Column("name", Words, nullable=False),
    Column("status", StatusWord, nullable=False),
    Column("image", Words, nullable=False),
    Column("size", Words, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("used_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("agent", Words, nullable=False),
    Column("env", Document, nullable=False),
    Column("labels", Document, nullable=False),
    Column("metadata", Document, nullable=False),
    Column("idle_timeout", BigInteger),
    Column("keep_warm", Boolean, nullable=False),
    Column("pause_reason", Words),
    Column("parent", Id, ForeignKey("sessions.id"), index=True),
    Column("fork_id", Id),
    Column("forked_from", Id),
    Column("machine", Id, index=True),
    Column("snapshot", Id, index=True),
    Column("boot_id", Id),
    Column("failure", Words),
    Column("last_event_at", Moment),
    Column("defaults", Document, nullable=False),
    Column("config", Id),
    Column("template", Id),
    Column("host", Id),
    Column("workspace", Id),
    Column("egress", Document),
    Column("names", Words),
)
Index("ix_sessions_host_status", sessions.c.host, sessions.c.status)
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
    Column("id", Id, primary_key=True),
    Column("name", Words, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("content_hash", Words, nullable=False),
    Column("schema_version", Words, nullable=False),
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
    Column("session", Id, ForeignKey("sessions.id"), primary_key=True),
    Column("key", Id, primary_key=True),
    Column("value", Words, nullable=False),
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
    Column("id", Id, primary_key=True),
    Column("session", Id, ForeignKey("sessions.id"), nullable=False),
    Column("kind", Words, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("status", Words, nullable=False),
    Column("checkpoint", Id, unique=True),
    Column("label", Words, nullable=False),
    Column("parent", Id, index=True),
    Column("event", Id),
    Column("error", Words),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("durable", Boolean, nullable=False),
    Column("workspace", Id),
)
Index(
    "ix_snapshots_session_created_at_id",
    snapshots.c.session,
    snapshots.c.created_at,
    snapshots.c.id,
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Words),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("updated_by", Id, nullable=False),
    Column("state", Words, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("session", Id, ForeignKey("sessions.id"), unique=True),
    Column("saved_at", Moment),
    Column("error", Words),
    Column("host", Id),
)
Index("ix_workspaces_created_at_id", workspaces.c.created_at, workspaces.c.id)
Index(
    "ix_workspaces_state_created_at_id",
    workspaces.c.state,
    workspaces.c.created_at,
    workspaces.c.id,
)

events = Table(
    "events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("type", Words, nullable=False),
    Column("at", Moment, nullable=False, index=True),
    Column("session", Id),
    Column("actor", Id),
    Column("data", Document, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_events_session_id", events.c.session, events.c.id)

operations = Table(
    "operations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", Words, nullable=False),
    Column("actor", Id, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("session", Id),
    Column("state", Words, nullable=False),
    Column("key", Id),
    Column("digest", Words),
    Column("plan", Document, nullable=False),
    Column("result", Document, nullable=False),
    Column("error", Words),
    Column("ended_at", Moment, index=True),
    Column("host", Id),
    UniqueConstraint("actor", "key"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Words, nullable=False),
    Column("role", Words, nullable=False),
    Column("sha256", Words, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("used_at", Moment),
    Column("revoked_at", Moment),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("purpose", Words, nullable=False),
    Column("secret", Words, nullable=False),
    Column("created_at", Moment, nullable=False),
)
Index("ix_keys_purpose_created_at", keys.c.purpose, keys.c.created_at)

transfers = Table(
    "transfers",
    metadata,
    Column("id", Id, primary_key=True),
    Column("session", Id, ForeignKey("sessions.id"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False, index=True),
    Column("created_by", Id, nullable=False),
    Column("direction", Words, nullable=False),
    Column("path", Words, nullable=False),
    Column("archive", Boolean, nullable=False),
    Column("status", Words, nullable=False, index=True),
    Column("part_size", BigInteger),
    Column("size", BigInteger),
    Column("sha256", Words),
    Column("done_bytes", BigInteger, nullable=False),
    Column("error", Words),
)
Index("ix_transfers_session_status", transfers.c.session, transfers.c.status)

transfer_parts = Table(
    "transfer_parts",
    metadata,
    Column("transfer", Id, ForeignKey("transfers.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Words, nullable=False),
    sqlite_with_rowid=False,
)

preview_links = Table(
    "preview_links",
    metadata,
    Column("id", Id, primary_key=True),
    Column("session", Id, ForeignKey("sessions.id"), nullable=False, index=True),
    Column("port", BigInteger, nullable=False),
    Column("label", Words, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("expires_at", Moment, nullable=False, index=True),
    Column("revoked_at", Moment),
)

secrets = Table(
    "secrets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Words, nullable=False, unique=True),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("updated_by", Id, nullable=False),
    Column("bindings", Document, nullable=False),
    Column("sealed", Words, nullable=False),
    Column("key", Id, nullable=False),
    Column("version", BigInteger, nullable=False),
)

session_secrets = Table(
    "session_secrets",
    metadata,
    Column("session", Id, ForeignKey("sessions.id"), primary_key=True),
    Column("secret", Id, ForeignKey("secrets.id"), primary_key=True, index=True),
    Column("created_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("although_open", Boolean, nullable=False),
    sqlite_with_rowid=False,
)

hosts = Table(
    "hosts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Words, nullable=False),
    Column("url", Words),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Id),
    Column("lease_until", Moment),
    Column("version", Words, nullable=False),
    Column("seen_at", Moment, nullable=False),
)

samples = Table(
    "samples",
    metadata,
    Column("session", Id, ForeignKey("sessions.id"), primary_key=True),
    Column("at", Moment, primary_key=True),
    Column("machine", Id),
    Column("vcpu", Float, nullable=False),
    Column("waited", Float, nullable=False),
    Column("emulator", Float, nullable=False),
    Column("resident", BigInteger, nullable=False),
    Column("private", BigInteger, nullable=False),
    Column("stored", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

egress_log = Table(
    "egress_log",
    metadata,
    Column("id", Id, primary_key=True),
    Column("session", Id, ForeignKey("sessions.id"), nullable=False),
    Column("at", Moment, nullable=False, index=True),
    Column("until", Moment, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("transport", Words, nullable=False),
    Column("host", Words, nullable=False),
    Column("port", BigInteger, nullable=False),
    Column("allowed", Boolean, nullable=False),
    Column("rule", Words, nullable=False),
    Column("why", Words, nullable=False),
    Column("add", Words, nullable=False),
    Column("spoken", Words),
    Column("address", Words),
    Column("ended", Boolean, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("received_bytes", BigInteger, nullable=False),
    Column("inspected", Boolean, nullable=False),
    Column("secrets", Listed, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_egress_log_session_id", egress_log.c.session, egress_log.c.id)

flows = Table(
    "flows",
    metadata,
    Column("session", Id, ForeignKey("sessions.id"), primary_key=True),
    Column("kind", Id, primary_key=True),
    Column("name", Id, primary_key=True),
    Column("first_at", Moment, nullable=False),
    Column("last_at", Moment, nullable=False),
    Column("connections", BigInteger, nullable=False),
    Column("denied", BigInteger, nullable=False),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("received_bytes", BigInteger, nullable=False),
    Column("inspected", Boolean, nullable=False),
    Column("secrets", Listed, nullable=False),
    sqlite_with_rowid=False,
)

traffic = Table(
    "traffic",
    metadata,
    Column("session", Id, ForeignKey("sessions.id"), primary_key=True),
    Column("at", Moment, primary_key=True),
    Column("host", Id, primary_key=True),
    Column("sent_bytes", BigInteger, nullable=False),
    Column("received_bytes", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

templates = Table(
    "templates",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Words, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("created_by", Id, nullable=False),
    Column("status", Words, nullable=False),
    Column("base", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("current_build", Id),
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
    Column("id", Id, primary_key=True),
    Column("template", Id, ForeignKey("templates.id"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("status", Words, nullable=False, index=True),
    Column("base", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("manifest", Words),
    Column("image", Words),
    Column("error", Words),
    Column("host", Id),
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
    Column("build", Id, ForeignKey("template_builds.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("text", Words, nullable=False),
    sqlite_with_rowid=False,
)
"""What was told while a template was built, line by line."""
