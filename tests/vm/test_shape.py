import pytest

from torpor.vm.errors import HostError
from torpor.vm.shape import MIB, SIZES, Shape, check_fits, free_memory_bytes


def test_a_shape_says_its_size() -> None:
    assert Shape(2, 1024).memory_bytes == 1 << 30
    assert str(Shape(2, 1024)) == "2 vCPU, 1024 MiB"


def test_each_named_size_is_what_its_name_says() -> None:
    for name, shape in SIZES.items():
        assert name == f"mars-{shape.vcpus}vcpu-{shape.memory_mib // 1024}gb"
        check_fits(shape, free_bytes=1 << 50)


@pytest.mark.parametrize("shape", [Shape(1, 64), Shape(255, 1 << 20)])
def test_the_smallest_and_the_largest_are_possible(shape: Shape) -> None:
    check_fits(shape, free_bytes=1 << 50)


@pytest.mark.parametrize(
    "shape",
    [Shape(0, 1024), Shape(-1, 1024), Shape(256, 1024), Shape(1, 63), Shape(1, (1 << 20) + 1)],
)
def test_beyond_them_a_machine_is_not_possible(shape: Shape) -> None:
    with pytest.raises(HostError, match="is not possible"):
        check_fits(shape, free_bytes=1 << 60)


def test_a_machine_must_fit_beside_what_is_kept_back() -> None:
    shape = Shape(1, 1024)
    check_fits(shape, free_bytes=1124 * MIB, reserve_bytes=100 * MIB)
    with pytest.raises(HostError, match="1123 MiB of memory are free") as error:
        check_fits(shape, free_bytes=1124 * MIB - 1, reserve_bytes=100 * MIB)
    assert "Nothing was started" in str(error.value)


def test_free_memory_is_what_the_kernel_says_is_available() -> None:
    text = "MemTotal:       8000000 kB\nMemFree:   1 kB\nMemAvailable:    5000 kB\n"
    assert free_memory_bytes(text) == 5000 * 1024
    with pytest.raises(HostError, match="MemAvailable"):
        free_memory_bytes("MemTotal: 1 kB\n")
