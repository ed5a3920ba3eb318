"""What holds for every test. The groups (markers) are declared in pyproject.toml."""

import faulthandler
import os
import signal
import tempfile

import pytest
from hypothesis import settings

from tests.postgres import cluster, database_url, pytest_generate_tests

__all__ = ["cluster", "database_url", "pytest_generate_tests"]

# Whoever starts the tests in the background of a shell, or with nohup, has them ignore these
# signals, and with them each program that they start, which is to hear them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Programs that tests start are to run as on anybody's computer; with this, Python holds nothing
# back that is left to be written when they end.
os.environ.pop("PYTHONUNBUFFERED", None)

# The size and the colours of a terminal are those that a test gives it, and the settings of
# Torpor its own; only where the cache is may be said from outside.
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
for name in [name for name in os.environ if name.startswith("TORPOR_")]:
    if name != "TORPOR_CACHE":
        del os.environ[name]

# Files of tests lie on a disk, as Torpor's do. Where /tmp is in memory (Debian 13), reading a file
# fills its holes, and bytes that are written over stay where they were.
if "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = "/var/tmp"

# A shared machine stalls now and then, so no example has a deadline. In CI the examples are the
# same each time, so that a failure is the change's own; everywhere else they are new ones.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: nothing is left then that one process does alone."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_unconfigure() -> None:
    """A run whose process does not end, for a thread that never does, says where and fails. (One of
    several side by side waits for the others, and is ended by the first.)"""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        faulthandler.dump_traceback_later(120, exit=True)
