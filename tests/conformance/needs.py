"""What calls need, one function each. Those of which one is enough for all are kept."""

from functools import wraps
from typing import Any

from tests.conformance.world import Need, World

CONTENT = b"what was written\n"
MANIFEST = "description: a tool\nsize: mars-2vcpu-1gb\nidle_timeout: 15m\nenv:\n  A: b\n"


def kept(need: Need) -> Need:
    """One is enough for all calls."""

    @wraps(need)
    async def found(world: World) -> Any:
        return await world.kept(need)

    return found


async def name(world: World) -> str:
    return world.name()


async def manifest(world: World) -> str:
    return f"name: {world.name()}\n{MANIFEST}"


async def file(world: World) -> str:
    """A path of the test's, at which nothing is."""
    return str(world.files / world.name())


# Sessions


async def new_session(world: World) -> str:
    """One that runs and that nothing else uses."""
    return await world.ready(name=world.name(), idle_timeout=900)


@kept
async def session(world: World) -> str:
    """One that runs, and is neither paused nor destroyed. It has a file."""
    made = await new_session(world)
    params = {"path": "found"}
    await world.ask("POST", f"/sessions/{made}/workspace/upload", params=params, content=CONTENT)
    return made


@kept
async def session_name(world: World) -> str:
    found = await world.ask("GET", f"/sessions/{await session(world)}")
    return str(found["session"]["name"])


async def paused_session(world: World) -> str:
    made = await new_session(world)
    await world.ask("POST", f"/sessions/{made}/pause")
    return made


@kept
async def warm_session(world: World) -> str:
    """One that is not to be paused."""
    return await world.ready(name=world.name(), keep_warm=True)


@kept
async def destroyed_session(world: World) -> str:
    made = await new_session(world)
    await world.ask("DELETE", f"/sessions/{made}")
    return made


async def last_event(world: World) -> str:
    """The newest event of the session."""
    path = f"/sessions/{await session(world)}/events"
    said = await world.answered("GET", path, params={"replay_only": "true"})
    ids = [line for line in said.text.splitlines() if line.startswith("id: ")]
    return str(ids[-1].removeprefix("id: "))


async def new_checkpoint(world: World) -> str:
    """One of the session."""
    found = await world.ask("POST", f"/sessions/{await session(world)}/checkpoints")
    return str(found["checkpoint"]["checkpoint_id"])


checkpoint = kept(new_checkpoint)


# Transfers, of the session


async def _transfer(world: World, **body: Any) -> str:
    path = f"/sessions/{await session(world)}/workspace/transfers"
    return str((await world.ask("POST", path, json=body))["transfer_id"])


async def upload(world: World) -> str:
    """One that waits for its one part."""
    return await _transfer(world, direction="upload", path="up", size_bytes=len(CONTENT))


async def empty_upload(world: World) -> str:
    """One that has all that it needs: nothing."""
    return await _transfer(world, direction="upload", path="empty", size_bytes=0)


@kept
async def ended_upload(world: World) -> str:
    """One that was cancelled."""
    made = await upload(world)
    path = f"/sessions/{await session(world)}/workspace/transfers/{made}"
    await world.ask("POST", f"{path}/cancel")
    return made


@kept
async def download(world: World) -> str:
    """One whose content is there."""
    made = await _transfer(world, direction="download", path="found")
    path = f"/sessions/{await session(world)}/workspace/transfers/{made}"
    await world.until(path, status="completed")
    return made


# Configurations


async def new_config(world: World) -> str:
    body = {"name": world.name(), "manifest_yaml": MANIFEST}
    return str((await world.ask("POST", "/configs", json=body))["config"]["id"])


config = kept(new_config)


@kept
async def used_config(world: World) -> str:
    """One that a session is of."""
    made = await new_config(world)
    await world.ready(name=world.name(), config_id=made)
    return made


# Templates


async def source(world: World) -> str:
    """The image that templates are built of."""
    return world.server.source


async def new_template(world: World) -> str:
    """One that is built."""
    body = {"name": world.name(), "base_template": "sandbox", "source_oci_ref": world.server.source}
    made = (await world.ask("POST", "/templates", json=body))["template"]["template_id"]
    await world.until(f"/templates/{made}", "template", status="TEMPLATE_STATUS_READY")
    return str(made)


template = kept(new_template)


@kept
async def build(world: World) -> str:
    """The build of the template."""
    found = await world.ask("GET", f"/templates/{await template(world)}/builds")
    return str(found["builds"][-1]["build_id"])


# Workspaces


async def new_workspace(world: World) -> str:
    """One that no session has."""
    made = await world.ask("POST", "/workspaces", json={"size_gibibytes": 1})
    return str(made["workspace"]["workspace_id"])


workspace = kept(new_workspace)


@kept
async def used_workspace(world: World) -> str:
    """One that a session has."""
    made = await new_workspace(world)
    await world.ready(name=world.name(), workspace_id=made)
    return made
