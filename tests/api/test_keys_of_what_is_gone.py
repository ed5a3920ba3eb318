"""What is asked for again with its key, after what was made then has been removed: the answer is
one that the document knows. Nothing is made a second time, but for workspaces (docs/workspaces.md).
"""

from typing import Any

import httpx
import pytest

from tests.api.conftest import Api
from torpor.api.document import document

KEY = {"Idempotency-Key": "k"}
SESSION = "/sessions/{session_id}"
MADE: dict[str, tuple[dict[str, Any], str]] = {
    "/sessions": ({"name": "two"}, "session_id"),
    "/configs": ({"name": "one", "manifest_yaml": "size: mars-2vcpu-1gb\n"}, "id"),
    "/templates": (
        {"name": "one", "base_template": "sandbox", "source_oci_ref": "r.test/x:1"},
        "template_id",
    ),
    f"{SESSION}/checkpoints": ({}, "checkpoint_id"),
    f"{SESSION}/previews": ({"port": 8080}, "preview_id"),
}


@pytest.mark.parametrize("path", MADE)
async def test_what_was_made_with_a_key_and_removed_is_not_made_again(
    api: Api, client: httpx.AsyncClient, path: str
) -> None:
    body, name = MADE[path]
    session = await api.ready(name="one")
    where = path.format(session_id=session)
    first = await client.post(where, json=body, headers=KEY)
    assert first.status_code in (200, 201, 202), first.text
    made = find(first.json(), name)
    removed = await client.delete(f"{where}/{made}")
    assert removed.status_code in (200, 202, 204), removed.text
    there = (await client.get(where)).json()
    again = await client.post(where, json=body, headers=KEY)
    known = document(api.app)["paths"]["/v2/agents" + path]["post"]["responses"]
    assert str(again.status_code) in known, again.text
    if again.is_success:
        assert find(again.json(), name) == made
    else:
        assert again.status_code == 404
    assert (await client.get(where)).json() == there


def find(body: Any, name: str) -> str:
    """Return the value of a name, wherever in an answer it stands."""
    if isinstance(body, dict):
        if name in body:
            return str(body[name])
        body = list(body.values())
    found = [find(each, name) for each in body if isinstance(each, dict | list)]
    return next(filter(None, found), "")
