import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.vm import manifest as documents
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.manifest import AttachedDisk, KeptDisk, MachineRecord, Manifest, Sums
from torpor.vm.shape import Shape

bounded = settings(
    max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@bounded
@given(
    labels=st.dictionaries(
        st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))
    ),
    sizes=st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(0, 2**63)),
    generation=st.integers(0, 2**63),
    parent=st.none() | st.text(st.characters(codec="utf-8")),
)
def test_a_manifest_comes_back_as_it_was(
    some_manifest: Manifest,
    labels: dict[str, str],
    sizes: dict[str, int],
    generation: int,
    parent: str | None,
) -> None:
    for memory in (some_manifest.memory, None):
        wanted = replace(
            some_manifest,
            labels=labels,
            sizes=sizes,
            generation=generation,
            parent=parent,
            memory=memory,
        )
        assert documents.parse(Manifest, documents.write(wanted), "manifest.json") == wanted


def test_a_record_and_sums_come_back_as_they_were(
    some_record: MachineRecord, tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"
    for each in (
        some_record,
        replace(some_record, process=None, base=None, snapshot=None, ready=True),
    ):
        file.write_bytes(documents.write(each))
        assert documents.read(MachineRecord, file) == each
    sums = Sums({"manifest.json": "ab" * 32}, (Layer("top", "qcow2", 1),))
    assert documents.parse(Sums, documents.write(sums), "sums.json") == sums


def test_a_record_names_all_that_its_machine_needs(some_record: MachineRecord) -> None:
    assert list(some_record.uses()) == [
        "bases/base.mem", "layers/root.raw", "layers/top.qcow2", "layers/tools.raw",
    ]  # fmt: skip
    assert "bases/base.mem" not in list(replace(some_record, base=None).uses())


def changed(some_manifest: Manifest, **changes: Any) -> bytes:
    return json.dumps(json.loads(documents.write(some_manifest)) | changes).encode()


def refusal(text: bytes) -> str:
    with pytest.raises(SnapshotError) as error:
        documents.parse(Manifest, text, "manifest.json")
    return str(error.value)


def test_each_field_is_needed_and_no_other_is_taken(some_manifest: Manifest) -> None:
    whole = json.loads(documents.write(some_manifest))
    assert set(whole) == {field.name for field in fields(Manifest)} - {"disks", "card"}
    for name in whole:
        less = {key: value for key, value in whole.items() if key != name}
        assert name in refusal(json.dumps(less).encode())
    assert "surprise" in refusal(changed(some_manifest, surprise=1))
    assert "shape.surprise" in refusal(
        changed(some_manifest, shape={"vcpus": 1, "memory_mib": 1, "surprise": 1})
    )


@pytest.mark.parametrize("version", [0, 4, -1, "1", None, [1], 1.5, True])
def test_another_version_is_refused_before_anything_else_is_read(
    some_manifest: Manifest, version: object
) -> None:
    for more in ({}, {"surprise": 1}):
        said = refusal(changed(some_manifest, version=version, **more))
        assert f"version {version!r}" in said
        assert "surprise" not in said


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\0" * 100, b"\xff\xfe", b"null", b"[]", b"7", b'"text"', b"{}", b"[" * 100_000,
        b'{"a":' * 100_000, b'{"version": NaN}', b'{"version": 1e999}',
        b'{"version": ' + b"9" * 5000 + b"}", b'{"id": "\\ud800"}',
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_no_manifest_is_one_kind_of_error(text: bytes) -> None:
    assert refusal(text).startswith("manifest.json ")


@bounded
@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_damaged_byte_is_refused_or_read_as_something_of_the_same_form(
    some_manifest: Manifest, place: int, flip: int
) -> None:
    text = bytearray(documents.write(some_manifest))
    text[place % len(text)] ^= flip
    try:
        found = documents.parse(Manifest, bytes(text), "manifest.json")
    except SnapshotError:
        return
    assert isinstance(found.shape, Shape)
    assert all(layer.format in ("raw", "qcow2") for layer in found.disk)


@pytest.mark.parametrize("text", [b'{"files": {}}', b'{"files": {"a": 1}, "disk": []}', b"{"])
def test_sums_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(SnapshotError, match=r"sums\.json is damaged"):
        documents.parse(Sums, text, "sums.json")


DISK = KeptDisk("workspace", "w", (Layer("base", "raw", 4096), Layer("one", "qcow2", 4096)))


def test_without_disks_in_slots_nothing_is_written_of_them(
    some_manifest: Manifest, some_record: MachineRecord
) -> None:
    for each in (some_manifest, some_record, Sums({}, ())):
        assert b"disks" not in documents.write(each)
        assert b"card" not in documents.write(each)
    assert b'"version": 1' in documents.write(some_manifest)


def test_with_disks_it_comes_back_as_it_was_and_has_another_version(
    some_manifest: Manifest, some_record: MachineRecord
) -> None:
    for disks in ((DISK,), (replace(DISK, disk=None), replace(DISK, slot="spare"))):
        wanted = replace(some_manifest, version=2, disks=disks)
        assert documents.parse(Manifest, documents.write(wanted), "manifest.json") == wanted
    sums = Sums({"a": "b"}, (), (DISK,))
    assert documents.parse(Sums, documents.write(sums), "sums.json") == sums
    attached = AttachedDisk("workspace", None, DISK.layers, Layer("top", "qcow2", 4096))
    record = replace(some_record, version=2, disks=(attached,))
    assert documents.parse(MachineRecord, documents.write(record), "machine.json") == record


def test_a_version_that_does_not_go_with_its_disks_is_refused(some_manifest: Manifest) -> None:
    assert "does not go with its disks" in refusal(changed(some_manifest, version=2))
    whole = json.loads(documents.write(replace(some_manifest, version=2, disks=(DISK,))))
    assert "does not go with its disks" in refusal(json.dumps(whole | {"version": 1}).encode())
    whole["disks"][0]["slot"] = "root"
    assert "disks.0.slot" in refusal(json.dumps(whole).encode())


def test_with_a_card_it_comes_back_as_it_was_and_has_another_version(
    some_manifest: Manifest, some_record: MachineRecord
) -> None:
    for disks in ((), (DISK,)):
        wanted = replace(some_manifest, version=3, disks=disks, card=True)
        assert documents.parse(Manifest, documents.write(wanted), "manifest.json") == wanted
    record = replace(some_record, version=3, card=True)
    assert documents.parse(MachineRecord, documents.write(record), "machine.json") == record
    for changes in ({"version": 3}, {"card": True}, {"card": True, "version": 2}):
        assert "does not go with" in refusal(changed(some_manifest, **changes))


def test_a_record_with_disks_names_their_layers_and_puts_tops_over_each(
    some_record: MachineRecord,
) -> None:
    top, new = Layer("workspace-1", "qcow2", 8192), Layer("workspace-2", "qcow2", 8192)
    record = replace(
        some_record, version=2, disks=(AttachedDisk("workspace", "w", DISK.layers, top),)
    )
    names = {"layers/base.raw", "layers/one.qcow2", "layers/workspace-1.qcow2"}
    assert names <= set(record.uses())
    assert (record.largest, record.own_disk) == (8192, "w")
    assert record.chains({}).slots[0].layers == DISK.layers
    assert record.chains({"workspace": top}).slots[0].layers == (*DISK.layers, top)
    assert record.chains({"workspace": top}).root == record.layers
    after = record.with_tops({"workspace": new})
    assert (after.disks[0].layers, after.disks[0].top) == ((*DISK.layers, top), new)
    assert (after.layers, after.top) == (record.layers, record.top)
    assert record.with_tops({"root": new}).disks == record.disks
