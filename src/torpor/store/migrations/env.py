"""What Alembic runs to migrate: on the connection that it is given, in its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
