"""Machines that can be frozen, thawed and forked.

host = await Host.open(home, accelerator, jail, golden=store)
machine = await host.thaw(snapshot, Identity.of("first"))
result = await machine.agent.run("/bin/uname", "-a")
frozen = await host.freeze(machine, Wanted(then="stop"))
machine = await host.thaw(frozen.manifest.id)
"""

from torpor.vm.accelerator import Accelerator, probe
from torpor.vm.aftermath import Kernels
from torpor.vm.agent import AgentCode, GuestAgent, Identity, Result
from torpor.vm.channel import readable
from torpor.vm.errors import (
    ChannelLostError,
    FreezeError,
    GuestError,
    HeldError,
    HostError,
    LaunchError,
    MachineDiedError,
    RebootedError,
    SnapshotError,
    UnansweredError,
    VmError,
    disk_is_full,
)
from torpor.vm.execs import Command, Connection, Exec, Exit, Terminal
from torpor.vm.files import Files, FileStatus, Listed
from torpor.vm.flows import STDERR, STDOUT, Gap, Output
from torpor.vm.freeze import Frozen, Times
from torpor.vm.guest_commands import KnownCommand
from torpor.vm.guest_processes import Process
from torpor.vm.guest_statistics import GuestStatistics
from torpor.vm.hooks import HookLimits, HookResult
from torpor.vm.host import Forked, Host
from torpor.vm.jail import Jail, detect
from torpor.vm.launch import Boot
from torpor.vm.machine import Machine
from torpor.vm.manifest import Manifest
from torpor.vm.new_snapshot import Wanted
from torpor.vm.recovery import Recovered
from torpor.vm.shape import MIB, SIZES, Shape
from torpor.vm.statistics import HostStatistics, Statistics
from torpor.vm.store import Collected, Store
from torpor.vm.thaw import BootWanted
from torpor.vm.thaw_times import ThawTimes
from torpor.vm.wire import Link, Links, Wire, Wired
from torpor.vm.works import Packing, Unpacking, Watch, Work

__all__ = [
    "MIB",
    "SIZES",
    "STDERR",
    "STDOUT",
    "Accelerator",
    "AgentCode",
    "Boot",
    "BootWanted",
    "ChannelLostError",
    "Collected",
    "Command",
    "Connection",
    "Exec",
    "Exit",
    "FileStatus",
    "Files",
    "Forked",
    "FreezeError",
    "Frozen",
    "Gap",
    "GuestAgent",
    "GuestError",
    "GuestStatistics",
    "HeldError",
    "HookLimits",
    "HookResult",
    "Host",
    "HostError",
    "HostStatistics",
    "Identity",
    "Jail",
    "Kernels",
    "KnownCommand",
    "LaunchError",
    "Link",
    "Links",
    "Listed",
    "Machine",
    "MachineDiedError",
    "Manifest",
    "Output",
    "Packing",
    "Process",
    "RebootedError",
    "Recovered",
    "Result",
    "Shape",
    "SnapshotError",
    "Statistics",
    "Store",
    "Terminal",
    "ThawTimes",
    "Times",
    "UnansweredError",
    "Unpacking",
    "VmError",
    "Wanted",
    "Watch",
    "Wire",
    "Wired",
    "Work",
    "detect",
    "disk_is_full",
    "probe",
    "readable",
]
