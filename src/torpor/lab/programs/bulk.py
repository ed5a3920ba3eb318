"""bulk.py write|read FILE WORD MIB: write a large file that follows from WORD, or check it.

Writing ends with fsync; reading begins with dropping the page cache, so that it is the disk that
answers. Tells the number of MiB that were right.
"""

import hashlib
import os
import sys
from pathlib import Path

MIB = 1 << 20
action, path, word, size = sys.argv[1], sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
# One block that nothing compresses or repeats, and in each a number: cheap, and every block of
# every machine is another.
block = bytearray(b"".join(hashlib.sha256(b"%s %d" % (word, n)).digest() for n in range(MIB // 32)))


def numbered(n: int) -> bytearray:
    """Return block number ``n``, with the number at each page."""
    for page in range(0, MIB, 4096):
        block[page : page + 8] = n.to_bytes(8, "little")
    return block


right = 0
if action == "write":
    with open(path, "wb", buffering=0) as file:
        for n in range(size):
            right += file.write(numbered(n)) == MIB
        os.fsync(file.fileno())
else:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    with open(path, "rb", buffering=0) as file:
        for n in range(size):
            right += file.read(MIB) == numbered(n)
        assert not file.read(1)
print(right)
