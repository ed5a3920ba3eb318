"""The database: records, tables, migrations."""
