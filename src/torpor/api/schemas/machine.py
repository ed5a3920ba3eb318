"""What runs in a machine, and what it uses."""

from dataclasses import asdict
from typing import Any, Self

from pydantic import Field

from torpor.api.schemas.body import Answered, Time
from torpor.store.records import Sample
from torpor.vm import Process, Statistics


class ProcessBody(Answered):
    """A process in a machine. What it says of itself is not believed, only passed on."""

    pid: int = Field(examples=[412])
    ppid: int = Field(examples=[1])
    session: int = Field(description="Its session in the kernel's sense.", examples=[412])
    uid: int = Field(examples=[0])
    name: str = Field(examples=["python3"])
    argv: list[str] = Field(examples=[["python3", "-m", "http.server"]])
    cut: bool = Field(description="Whether there is more of `argv`.")
    state: str = Field(description="The kernel's letter for it.", examples=["S"])
    started: float = Field(description="Seconds of the machine's running time since its boot.")
    cpu: float = Field(description="Seconds.")
    memory: int = Field(description="Resident bytes.")
    threads: int
    exec_id: str | None = Field(None, description="The command that it belongs to.")
    user: bool = Field(description="Whether it is the user's, and may be sent signals.")

    @classmethod
    def of(cls, process: Process) -> Self:
        """Return a process as it is shown."""
        said = asdict(process)
        said["exec_id"] = said.pop("exec")
        return cls(**said | {"argv": list(process.argv)})


class Processes(Answered):
    """The processes of a machine."""

    processes: list[ProcessBody]


class StatisticsBody(Answered):
    """What a machine uses at the moment."""

    host: dict[str, Any] = Field(
        description="As the host sees it: seconds of each vCPU (`vcpus`), of `waited` for a"
        " processor and of the `emulator`; bytes of memory and of the disk's own `layer`; reads and"
        " writes."
    )
    guest: dict[str, Any] | None = Field(
        None, description="As the machine says; left out if it did not answer in time."
    )

    @classmethod
    def of(cls, statistics: Statistics) -> Self:
        """Return statistics as they are shown."""
        guest = statistics.guest
        return cls(host=asdict(statistics.host), guest=asdict(guest) if guest else None)


class SampleBody(Answered):
    """What a session used at one moment."""

    at: Time
    sandbox_id: str | None = Field(
        None, description="The machine, from whose start the seconds count; none while paused."
    )
    vcpu_seconds: float = Field(description="For which its vCPUs ran.")
    waited_seconds: float = Field(description="For which they were ready and had no processor.")
    emulator_seconds: float = Field(description="For which the rest of its emulator ran.")
    resident_bytes: int = Field(description="Memory that is there.")
    private_bytes: int = Field(description="Memory that only it has.")
    stored_bytes: int = Field(description="What its snapshots and its disk take.")

    @classmethod
    def of(cls, sample: Sample) -> Self:
        """Return a sample as it is shown."""
        return cls(
            at=sample.at,
            sandbox_id=sample.machine,
            vcpu_seconds=sample.vcpu,
            waited_seconds=sample.waited,
            emulator_seconds=sample.emulator,
            resident_bytes=sample.resident,
            private_bytes=sample.private,
            stored_bytes=sample.stored,
        )


class Samples(Answered):
    """What a session used, moment by moment, the oldest first."""

    samples: list[SampleBody]


class HostBody(Answered):
    """The computer that the machines run on, and this server."""

    name: str = Field(examples=["build-host"])
    version: str = Field(description="Torpor's.", examples=["0.1.0"])
    accelerator: str = Field(description="kvm or tcg (emulation).", examples=["kvm"])
    why: str | None = Field(None, description="Why that one, for those who may use sessions.")
    qemu: str = Field(examples=["10.0.2"])
    jail_missing: list[str] | None = Field(
        None,
        description="Parts of the machines' jail that this host does not allow, and why, for those"
        " who may use sessions.",
    )
    wall_missing: str | None = Field(
        None,
        description="Why machines have no network here, for those who may use sessions; left out if"
        " they have.",
    )
    memory_bytes: int = Field(description="All of its memory.")
    free_memory_bytes: int = Field(description="Memory that can be had now.")
    promised_free_bytes: int = Field(
        description="Memory that can be promised to new machines: without what is kept back, and"
        " what those that run may still take. Negative: too much has been promised."
    )
    free_disk_bytes: int
    stored_bytes: int = Field(description="What all snapshots take.")
    sessions: dict[str, int] = Field(
        description="How many there are in each state.", examples=[{"READY": 2, "PAUSED": 190}]
    )
