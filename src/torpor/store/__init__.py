"""The database: records, tables, migrations, and one module of functions for each table.

``Database.open`` gives connections to read and to write with; the functions take one. SQL is seen
nowhere above this package.
"""
