"""inventory.py DIRECTORY: print ``{path: [mode, size, SHA-256]}`` of all files below DIRECTORY."""

import hashlib
import json
import sys
from pathlib import Path

root = Path(sys.argv[1])
found = {}
for path in sorted(root.rglob("*")):
    status = path.lstat()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    found[str(path.relative_to(root))] = [status.st_mode, status.st_size, content]
print(json.dumps(found))
