import pytest

from torpor.images.errors import ImageError
from torpor.images.initramfs import load_order
from torpor.images.runtime import useful_modules

DEPENDENCIES = """\
kernel/drivers/net/virtio_net.ko: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
kernel/drivers/net/ethernet/intel/e1000.ko: kernel/lib/only_e1000.ko
kernel/lib/only_e1000.ko:
kernel/net/bridge/bridge.ko: kernel/other/stp.ko kernel/net/llc/llc.ko
kernel/other/stp.ko: kernel/net/llc/llc.ko
kernel/net/llc/llc.ko:
kernel/sound/snd.ko:
"""


def test_what_a_module_needs_is_loaded_before_it() -> None:
    assert load_order(("virtio_net",), DEPENDENCIES, "") == [
        "kernel/net/core/failover.ko",
        "kernel/drivers/net/net_failover.ko",
        "kernel/drivers/net/virtio_net.ko",
    ]


def test_each_module_is_loaded_once() -> None:
    order = load_order(("failover", "net_failover", "virtio_net"), DEPENDENCIES, "")
    assert len(order) == len(set(order)) == 3


def test_builtin_is_skipped() -> None:
    assert load_order(("ext4",), DEPENDENCIES, "kernel/fs/ext4/ext4.ko\n") == []


def test_missing_module_is_named() -> None:
    with pytest.raises(ImageError, match="virtio_blk"):
        load_order(("virtio_blk",), DEPENDENCIES, "")


def test_useful_modules_bring_what_they_need_and_no_hardware() -> None:
    wanted = useful_modules(DEPENDENCIES)
    assert "kernel/other/stp.ko" in wanted
    assert not {"kernel/drivers/net/ethernet/intel/e1000.ko", "kernel/sound/snd.ko"} & set(wanted)
