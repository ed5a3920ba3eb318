"""agent.py DIRECTORY TURNS: a stand-in for an agent that works for some turns and ends.

It leaves what agents leave: a database of its conversation, a log, questions that wait for a
person, and files that it has made.
"""

import json
import random
import sqlite3
import sys
from pathlib import Path

directory, turns = Path(sys.argv[1]), int(sys.argv[2])
workspace = directory / "workspace"
workspace.mkdir(parents=True)
database = sqlite3.connect(directory / "state.db")
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE message (turn INTEGER PRIMARY KEY, role TEXT, content TEXT)")
with open(directory / "agent.log", "w") as log:
    for turn in range(turns):
        role = ("user", "assistant")[turn % 2]
        content = random.randbytes(200).hex()
        with database:
            database.execute("INSERT INTO message VALUES (?, ?, ?)", (turn, role, content))
        log.write(f"turn {turn}: {role} said {len(content)} characters\n")
        made = workspace / f"part-{turn % 5}" / f"result {turn}.bin"
        made.parent.mkdir(exist_ok=True)
        made.write_bytes(random.randbytes(random.randrange(50_000)))
(workspace / "empty").touch()
pending = [{"id": "q-1", "tool": "mail.send", "question": "Send this mail?"}]
(directory / "pending-interactions.json").write_text(json.dumps(pending))
database.close()
