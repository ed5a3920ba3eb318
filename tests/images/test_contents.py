"""What is kept of a layer: the contents of its files."""

from contextlib import closing
from pathlib import Path

from tests.images.oci_builder import Member, layer
from torpor.images.contents import HOLE, Contents
from torpor.images.tar_stream import Reader, entries


def kept(archive: bytes, place: Path, step: int) -> list[str]:
    pieces = (archive[at : at + step] for at in range(0, len(archive), step))
    with closing(Contents(place, 0)) as contents:
        reader = Reader(pieces, contents.write)
        names = [contents.begin(entry) for entry in entries(reader)]
        contents.end()
        reader.drain()
    return names


def test_contents_are_kept_in_whatever_pieces_they_come(tmp_path: Path) -> None:
    wanted = [b"y" * 9, b"", b"x" * 512, b"z" * HOLE + bytes(3 * HOLE), bytes(HOLE - 1), b"w" * 513]
    archive = layer(*(Member(b"%d" % number, content=each) for number, each in enumerate(wanted)))
    for step in (1, 500, 512, 4096, len(archive)):
        place = tmp_path / str(step)
        place.mkdir()
        names = kept(archive + b"what follows the end" * 100, place, step)
        assert [name and (place / name).read_bytes() for name in names] == [
            content or "" for content in wanted
        ]
        assert sorted(names)[1:] == sorted(each.name for each in place.iterdir())


def test_holes_stay_holes(tmp_path: Path) -> None:
    [name] = kept(layer(Member(b"x", content=bytes(64 * HOLE))), tmp_path, HOLE)
    assert (tmp_path / name).stat().st_blocks == 0
