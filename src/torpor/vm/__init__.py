"""Machines that can be frozen, thawed and forked.

host = await Host.open(home, accelerator, jail, golden=store)
machine = await host.thaw(snapshot, Identity.of("first"))
result = await machine.agent.run("/bin/uname", "-a")
frozen = await host.freeze(machine, Wanted(then="stop"))
machine = await host.thaw(frozen.manifest.id)
"""

from torpor.vm.accelerator import Accelerator, probe
from torpor.vm.agent import FileStatus, GuestAgent, Identity, Result
from torpor.vm.errors import (
    ChannelLostError,
    FreezeError,
    GuestError,
    HostError,
    LaunchError,
    MachineDiedError,
    SnapshotError,
    VmError,
)
from torpor.vm.execs import Command, Connection, Exec, Exit, Terminal
from torpor.vm.flows import STDERR, STDOUT, Gap, Output
from torpor.vm.freeze import Frozen, Times
from torpor.vm.host import Forked, Host, Recovered
from torpor.vm.jail import Jail, detect
from torpor.vm.launch import Boot
from torpor.vm.machine import Machine, ThawTimes
from torpor.vm.manifest import Manifest
from torpor.vm.new_snapshot import Wanted
from torpor.vm.shape import MIB, SIZES, Shape
from torpor.vm.store import Collected, Store
from torpor.vm.thaw import BootWanted

__all__ = [
    "MIB",
    "SIZES",
    "STDERR",
    "STDOUT",
    "Accelerator",
    "Boot",
    "BootWanted",
    "ChannelLostError",
    "Collected",
    "Command",
    "Connection",
    "Exec",
    "Exit",
    "FileStatus",
    "Forked",
    "FreezeError",
    "Frozen",
    "Gap",
    "GuestAgent",
    "GuestError",
    "Host",
    "HostError",
    "Identity",
    "Jail",
    "LaunchError",
    "Machine",
    "MachineDiedError",
    "Manifest",
    "Output",
    "Recovered",
    "Result",
    "Shape",
    "SnapshotError",
    "Store",
    "Terminal",
    "ThawTimes",
    "Times",
    "VmError",
    "Wanted",
    "detect",
    "probe",
]
