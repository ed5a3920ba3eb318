import json
import re
from dataclasses import replace
from typing import Any

import pytest

from torpor.vm.accelerator import Accelerator
from torpor.vm.disk import Layer
from torpor.vm.manifest import ROOT, Drive
from torpor.vm.qemu import Descriptors, DriveFiles, Kernel, command_line, maps_read_only
from torpor.vm.shape import Shape

LAYERS = (Layer("rrrr", "raw", 1 << 30), Layer("m" * 40, "qcow2", 1 << 30))
TOP = Layer("tttt", "qcow2", 1 << 30)
DRIVE = Drive(ROOT, LAYERS, TOP)
FILES = DriveFiles((24, 25), (26, 28))
DESCRIPTORS = Descriptors(memory=20, monitor=21, agent=22, console=23, drives=(FILES,), tools=27)
WORKSPACE = Drive(
    "workspace",
    (Layer("workspace-base", "raw", 8 << 30),),
    Layer("workspace-0123456789abcd", "qcow2", 8 << 30),
)


def line(
    *,
    kernel: Kernel | None = None,
    name: str = "tcg",
    version: tuple[int, int, int] = (7, 2, 0),
    descriptors: Descriptors = DESCRIPTORS,
    drives: tuple[Drive, ...] = (DRIVE,),
) -> list[str]:
    accelerator = Accelerator(name, "", version, "cpu")  # type: ignore[arg-type]
    return command_line("torpor-x-1", Shape(2, 1024), accelerator, drives, descriptors, kernel)


def values(words: list[str], option: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def memory(words: list[str]) -> str:
    (found,) = (each for each in values(words, "-object") if each.startswith("memory-"))
    return found


def nodes(words: list[str]) -> dict[str, dict[str, Any]]:
    texts = [text for text in values(words, "-blockdev") if text.startswith("{")]
    return {node["node-name"]: node for node in map(json.loads, texts)}


def test_a_thaw_waits_for_the_saved_state_and_a_boot_does_not() -> None:
    thaw = line()
    assert "-S" in thaw
    assert values(thaw, "-incoming") == ["defer"]
    assert "-kernel" not in thaw
    boot = line(kernel=Kernel(30, 31, "quiet more"))
    assert "-S" not in boot
    assert "-incoming" not in boot
    assert values(boot, "-kernel") == ["/proc/self/fd/30"]
    assert values(boot, "-initrd") == ["/proc/self/fd/31"]
    assert values(boot, "-append")[0].endswith("quiet more")


def test_both_sides_of_a_snapshot_are_the_same_machine() -> None:
    thaw, boot = line(), line(kernel=Kernel(30, 31))
    own = {"-S", "-incoming", "defer"}
    assert [word for word in thaw if word not in own] == boot[: boot.index("-kernel")]
    assert "migration.send-configuration=off" in values(thaw, "-global")
    assert "suppress-vmdesc=on" in values(thaw, "-M")[0]


@pytest.mark.parametrize(
    ("version", "read_only"),
    [
        ((7, 2, 0), False),
        ((8, 1, 5), False),
        ((8, 2, 0), True),
        ((9, 0, 0), True),
        ((10, 0, 2), True),
    ],
)
def test_the_base_is_mapped_privately_and_where_qemu_can_read_only(
    version: tuple[int, int, int], read_only: bool
) -> None:
    assert maps_read_only(version) == read_only
    found = memory(line(version=version))
    assert "share=off" in found
    assert "mem-path=/proc/self/fd/20" in found
    assert "size=1024M" in found
    assert ("readonly=on,rom=off" in found) == read_only


def test_without_a_base_memory_comes_from_nowhere() -> None:
    descriptors = Descriptors(None, 21, 22, 23, (FILES,), 27)
    assert memory(line(descriptors=descriptors)) == "memory-backend-ram,id=ram,size=1024M"
    assert descriptors.all() == (21, 22, 23, 24, 25, 26, 28, 27)


@pytest.mark.parametrize("kernel", [None, Kernel(30, 31)])
def test_no_path_of_the_host_is_in_it(kernel: Kernel | None) -> None:
    words = line(kernel=kernel)
    text = " ".join(words)
    paths = re.findall(r"(?<![\w.])/[\w./-]+", text)
    assert paths
    assert [
        path for path in paths if not re.fullmatch(r"/proc/self/fd/\d+|/dev/fdset/\d+", path)
    ] == []


def test_each_descriptor_is_used_and_each_that_is_used_is_inherited() -> None:
    words = line()
    used = {int(n) for n in re.findall(r"(?:/proc/self/fd/|\bfd=)(\d+)", " ".join(words))}
    assert used == set(DESCRIPTORS.all())
    files = {int(n) for n in re.findall(r"/dev/fdset/(\d+)", " ".join(words))}
    added = [
        re.fullmatch(r"fd=(\d+),set=(\d+),opaque=[\w-]+", each) for each in values(words, "-add-fd")
    ]
    sets = {int(each[1]): int(each[2]) for each in added if each}
    assert set(sets) == {24, 25, 26, 27, 28}
    assert set(sets.values()) == files
    assert sets[26] == sets[28]  # the top layer, in both of its modes


def test_the_chain_of_layers_is_given_and_only_the_top_is_written() -> None:
    found = nodes(line())
    root, middle, top = "layer-rrrr", "layer-" + "m" * 24, "layer-tttt"
    assert set(found) == {root, middle, top, "tools"}
    assert (found[top]["backing"], found[middle]["backing"]) == (middle, root)
    assert "backing" not in found[root]
    assert all(len(name) <= 31 for name in found)
    for name, node in found.items():
        assert node.get("read-only", False) == (name != top)
        assert node["file"].get("read-only", False) == (name != top)
    disk = next(each for each in values(line(), "-device") if "serial=torpor-root" in each)
    assert f"drive={top}," in disk


def test_a_machine_has_no_network_no_display_and_reads_no_configuration() -> None:
    words = line()
    assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(words)
    assert values(words, "-display") == ["none"]
    assert [word for word in words if "net" in word and "netdev" in word] == []
    assert "virtio-balloon" not in " ".join(words)  # it would punch holes into the base


def test_its_name_is_a_word_of_its_own_and_its_size_is_as_asked() -> None:
    words = line()
    assert values(words, "-name") == ["torpor-x-1"]
    assert (values(words, "-m"), values(words, "-smp")) == (["1024M"], ["2"])


def test_what_differs_between_accelerators_is_what_they_say() -> None:
    native, emulated = line(name="kvm"), line(name="tcg")
    assert values(native, "-accel") == ["kvm"]
    assert values(emulated, "-accel") == ["tcg,thread=multi,tb-size=512"]
    differing = {*native} ^ {*emulated}
    assert differing == {"kvm", "host", "tcg,thread=multi,tb-size=512", "max"}
    boot = line(name="kvm", kernel=Kernel(30, 31))
    assert "tsc" not in values(boot, "-append")[0]


def test_a_disk_in_a_slot_takes_the_place_of_nothing() -> None:
    empty = line()
    nodes_of_slots = [each for each in values(empty, "-blockdev") if each.startswith("driver=null")]
    assert [re.findall(r"node-name=(\w+)", each)[0] for each in nodes_of_slots] == [
        "workspace", "spare",
    ]  # fmt: skip
    files = DriveFiles((30,), (31, 32))
    descriptors = replace(DESCRIPTORS, drives=(FILES, files))
    words = line(descriptors=descriptors, drives=(DRIVE, WORKSPACE))
    (left,) = (each for each in values(words, "-blockdev") if each.startswith("driver=null"))
    assert "node-name=spare" in left
    found = nodes(words)
    top, base = "layer-workspace-0123456789abcd", "layer-workspace-base"
    assert (found[top]["backing"], found[base]["read-only"]) == (base, True)
    assert len(top) <= 31
    # The devices are the same, in the same order: a snapshot of one goes on in the other.
    devices = [
        [re.sub(r"drive=[\w-]+", "", each) for each in values(each_line, "-device")]
        for each_line in (empty, words)
    ]
    assert devices[0] == devices[1]
    assert f"drive={top},serial=torpor-workspace" in ",".join(values(words, "-device"))
    added = dict(
        re.fullmatch(r"fd=(\d+),set=(\d+),opaque=[\w-]+", each).groups()  # type: ignore[union-attr]
        for each in values(words, "-add-fd")
    )
    assert added["31"] == added["32"] != added["30"]
    assert set(map(int, added)) >= {30, 31, 32}


def test_a_card_comes_last_and_changes_nothing_else() -> None:
    with_card = line(descriptors=replace(DESCRIPTORS, card=31))
    without = line()
    (device,) = [word for word in with_card if word.startswith("virtio-net-device")]
    more = ["-netdev", "tap,id=wire,fd=31,vhost=off", "-device", device]
    at = with_card.index("-netdev")
    assert with_card[at : at + 4] == more
    assert with_card[:at] + with_card[at + 4 :] == without
    assert 31 in replace(DESCRIPTORS, card=31).all()
    assert values(with_card, "-device")[-1] == device


def test_the_card_is_the_same_whatever_the_hosts_kernel_can_do() -> None:
    for version, newer in (((7, 2, 0), False), ((8, 2, 0), True), ((10, 0, 0), True)):
        words = line(version=version, descriptors=replace(DESCRIPTORS, card=31))
        device = values(words, "-device")[-1]
        assert "mac=02:74:6f:72:70:72" in device
        for name in ("guest_announce", "guest_ufo", "host_ufo"):
            assert f",{name}=off" in device
        for name in ("guest_uso4", "guest_uso6", "host_uso"):
            assert (f",{name}=off" in device) is newer
