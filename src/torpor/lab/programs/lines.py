"""lines.py COUNT PAUSE: write COUNT numbered lines, each seventh to standard error.

Every 100 lines it waits for PAUSE seconds. What it writes follows from the number alone.
"""

import sys
import time


def line(n: int) -> bytes:
    """Return line number ``n``; 0x7d and 0x7e mean something to the channel, 0xff is no UTF-8."""
    return b"%d %s\n" % (n, b"}~\x00\xff"[n % 4 :] * (n % 20))


def to_error(n: int) -> bool:
    """Say whether line number ``n`` goes to standard error."""
    return n % 7 == 3


def main() -> None:
    """Write the lines."""
    count, pause = int(sys.argv[1]), float(sys.argv[2])
    for n in range(count):
        (sys.stderr if to_error(n) else sys.stdout).buffer.write(line(n))
        if n % 100 == 0:
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(pause)


if __name__ == "__main__":
    main()
