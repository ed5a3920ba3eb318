"""What Alembic runs to migrate: on the connection that it is given, in its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # SQLite can take back a change of its tables; Alembic does not expect it to.
    transactional_ddl=True,
    # SQLite changes few things of a table in place: others by making it anew.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
