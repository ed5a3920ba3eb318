"""ledger.py DIRECTORY: move money between accounts in SQLite (WAL) as fast as it will go.

Each transaction takes an amount from one account, gives it to another and writes an entry. So the
sum of all accounts is always 0, and the entries are numbered without a gap up to the number of
transactions that this process counts in memory.
"""

import random
import sqlite3
import sys
from typing import Any

from answering import answer_on_signal

ACCOUNTS = 100
directory = sys.argv[1]
committed = 0


def tell() -> dict[str, Any]:
    """Return how many transactions were committed, by this process's own count."""
    return {"committed": committed}


database = sqlite3.connect(f"{directory}/ledger.db", isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("PRAGMA synchronous=NORMAL")
# A small WAL: it is folded into the database every few dozen transactions, under way or not.
database.execute("PRAGMA wal_autocheckpoint=50")
database.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
database.execute("CREATE TABLE entry (n INTEGER PRIMARY KEY, amount INTEGER, note BLOB)")
database.execute("CREATE INDEX entry_amount ON entry (amount)")
database.executemany("INSERT INTO account VALUES (?, 0)", [(n,) for n in range(ACCOUNTS)])
answer_on_signal(directory, tell)
while True:
    payer, payee = random.sample(range(ACCOUNTS), 2)
    amount = random.randrange(1, 10_000)
    database.execute("BEGIN IMMEDIATE")
    move = "UPDATE account SET balance = balance + ? WHERE id = ?"
    database.execute(move, (-amount, payer))
    database.execute(move, (amount, payee))
    note = random.randbytes(random.randrange(2000))
    database.execute("INSERT INTO entry VALUES (?, ?, ?)", (committed + 1, amount, note))
    database.execute("COMMIT")
    committed += 1
