"""The host: what it is, and what it has left."""

import torpor
from torpor.api.permissions import Permission, needs
from torpor.api.routes import router
from torpor.api.schemas.machine import HostBody
from torpor.api.wiring import Asker, Service

routes = router("host")


@routes.get("/host", summary="Show the host")
@needs(Permission.READ)
async def get_host(service: Service, caller: Asker) -> HostBody:
    """Torpor: show the computer that the machines run on, and how much of it is left."""
    shown = caller.may(Permission.USE)
    facts = await service.host()
    counts = await service.counts()
    return HostBody(
        name=facts.name,
        version=torpor.__version__,
        accelerator=facts.accelerator,
        why=facts.why if shown else None,
        qemu=facts.qemu,
        jail_missing=list(facts.jail_missing) if shown else None,
        wall_missing=facts.wall_missing if shown else None,
        memory_bytes=facts.memory,
        free_memory_bytes=facts.free_memory,
        promised_free_bytes=service.free_memory(),
        free_disk_bytes=facts.free_disk,
        stored_bytes=facts.stored,
        sessions={str(status): count for status, count in counts.items()},
    )
