"""A workspace of sessions whose machines are agents on this host: a directory of the test's."""

import os
from pathlib import Path

import pytest

from tests.guest.conftest import open_to_all
from torpor.sessions import workspace_paths

ALL_BYTES = bytes(each for each in range(1, 256) if each != ord("/"))
"""A name in which there is every byte that a name may have."""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the workspace is; nobody has made it yet."""
    open_to_all(tmp_path)
    place = tmp_path / "w"
    monkeypatch.setattr(workspace_paths, "ROOT", os.fsencode(place))
    return place
