"""The end of a program whose terminal has gone away, as its window was closed.

What is written to it then is an error, also what Python still holds when it ends, and there is
nobody to tell. So such a program ends as if the signal that comes with it had ended it.
"""

import errno
import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager

STATUS = 128 + signal.SIGHUP


@contextmanager
def heard() -> Iterator[None]:
    """Exit with the status of a hang-up if standard output or error is a terminal that is gone by
    the end of the context."""
    try:
        yield
    except BaseException:
        if _let_go():
            raise SystemExit(STATUS) from None
        raise
    if _let_go():
        raise SystemExit(STATUS)


def _let_go() -> bool:
    """Have what is written to terminals that are gone lead nowhere; say whether there are any."""
    gone = [descriptor for descriptor in (1, 2) if _is_gone(descriptor)]
    if gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in gone:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return bool(gone)


def _is_gone(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False
