"""The filter of system calls, on a real process."""

import ctypes
import errno
import os
import subprocess
import sys

import pytest

from torpor.vm.seccomp import DENIED, program

CODE = """
import ctypes, errno, os, socket, sys
filter_ = bytes.fromhex(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

libc.prctl(38, 1, 0, 0, 0)
loaded = Program(len(filter_) // 8, filter_)
assert libc.prctl(22, 2, ctypes.byref(loaded), 0, 0) == 0, ctypes.get_errno()
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 17, 38, 40):
    try:
        socket.socket(family, socket.SOCK_STREAM if family == 1 else socket.SOCK_DGRAM).close()
        print(family, "made")
    except OSError as error:
        print(family, errno.errorcode[error.errno])
for number in map(int, sys.argv[2:]):
    ctypes.set_errno(0)
    print(number, libc.syscall(number, -1, -1, -1, -1, -1), errno.errorcode.get(ctypes.get_errno()))
os.getpid()
print("still here")
"""


def filtered(*numbers: int) -> list[str]:
    line = [sys.executable, "-c", CODE, program().hex(), *map(str, numbers)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_no_socket_but_a_local_one_can_be_made() -> None:
    made = filtered()
    assert made[0] == "1 made"
    assert {line.split()[1] for line in made[1:-1]} == {"EAFNOSUPPORT"}
    assert made[-1] == "still here"


@pytest.mark.parametrize("name", sorted(DENIED))
def test_a_denied_call_fails_as_if_the_kernel_did_not_have_it(name: str) -> None:
    number = DENIED[name]
    assert f"{number} -1 ENOSYS" in filtered(number)


def test_calls_of_another_kind_of_program_end_it() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        filtered(0x40000000 + 39)  # x32
    assert caught.value.returncode == -31  # SIGSYS


def test_the_numbers_are_those_of_this_kernel() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(DENIED["keyctl"], 9999)
    assert ctypes.get_errno() in (errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS)
    assert os.uname().machine == "x86_64"
