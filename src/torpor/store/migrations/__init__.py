"""The steps from an older set of tables to the next, as Alembic runs them."""
