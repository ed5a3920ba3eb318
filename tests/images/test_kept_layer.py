"""What who unpacks a layer is given to read."""

import io
import tarfile
from pathlib import Path

from tests.images.oci_builder import Member, layer
from torpor.images.kept_layer import LARGE, KeptLayer
from torpor.images.tar_stream import Reader, entries


def test_of_large_files_it_is_given_the_names_only(tmp_path: Path) -> None:
    archive = layer(Member(b"large", content=b"x" * LARGE), Member(b"small", content=b"y" * 9))
    with KeptLayer(tmp_path / "layer", tmp_path / "apart", 0) as kept:
        reader = Reader(iter([archive]), kept.write)
        names = [kept.begin(entry) for entry in entries(reader)]
        kept.end()
        reader.drain()
    assert [bool(name) for name in names] == [True, False]
    assert (tmp_path / "apart" / names[0]).read_bytes() == b"x" * LARGE
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "layer").read_bytes())) as found:
        assert [(each.name, each.size) for each in found] == [("large", 0), ("small", 9)]
