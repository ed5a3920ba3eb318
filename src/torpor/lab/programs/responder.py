"""responder.py: answer each line of standard input with 8 KiB and three short lines."""

import sys

for request in sys.stdin:
    word = request.strip()
    print("x" * 8191)
    for n in range(3):
        print(f"{word} {n}", flush=True)
