"""What holds for every test. The groups (markers) are declared in pyproject.toml."""

import os

from hypothesis import settings

# A shared machine stalls now and then, so no example has a deadline. In CI the examples are the
# same each time, so that a failure is the change's own; everywhere else they are new ones.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
