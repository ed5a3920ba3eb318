"""The database: records, tables, migrations, and one module of functions for each table.

``Database.open`` gives connections to read and to write with; the functions take one. SQL is seen
nowhere above this package.
"""

from torpor.store.configs import ConfigQuery
from torpor.store.database import Database, Transaction
from torpor.store.paging import Page
from torpor.store.sessions import SessionQuery
from torpor.store.workspaces import WorkspaceQuery

__all__ = ["ConfigQuery", "Database", "Page", "SessionQuery", "Transaction", "WorkspaceQuery"]
