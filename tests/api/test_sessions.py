"""Sessions over HTTP."""

import httpx
import pytest

from tests.api.conftest import Api
from tests.waiting import eventually
from torpor.api.events import LAST

METADATA = {"z": [1, None, {"y": None}], "a": {"c": 1.5, "b": "\u2028"}}


async def test_a_session_is_made_shown_changed_paused_resumed_and_destroyed(
    api: Api, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/sessions", json={"name": "one", "labels": {"team": "search"}})
    assert answer.status_code == 200
    made = answer.json()["session"]
    assert made["status"] == "SESSION_STATUS_PROVISIONING"
    assert (made["agent_kind"], made["name"]) == ("AGENT_KIND_NONE", "one")
    path = f"/sessions/{made['session_id']}"

    async def status() -> str:
        return str((await client.get(path)).json()["session"]["status"])

    await eventually(status, lambda said: said == "SESSION_STATUS_READY")
    changed = await client.patch(path, json={"metadata": METADATA, "idle_timeout": "1h"})
    assert changed.json()["session"]["metadata"] == METADATA
    assert changed.json()["session"]["idle_timeout_seconds"] == 3600
    assert (await client.post(path + "/pause")).status_code == 204
    paused = (await client.get(path)).json()["session"]
    assert (paused["status"], paused["pause_reason"]) == ("SESSION_STATUS_PAUSED", "manual")
    assert [each["kind"] for each in paused["recoverable"]] == ["pause"]
    assert (await client.post(path + "/pause")).status_code == 204
    assert (await client.post(path + "/resume")).status_code == 204
    assert await status() == "SESSION_STATUS_READY"
    assert (await client.delete(path)).status_code == 204
    assert (await client.delete(path)).status_code == 204
    assert await status() == "SESSION_STATUS_DESTROYED"
    assert (await client.post(path + "/resume")).status_code == 404


async def test_times_are_utc_and_what_is_not_there_is_left_out(client: httpx.AsyncClient) -> None:
    made = (await client.post("/sessions")).json()["session"]
    assert made["created_at"].endswith("Z")
    assert "parent_session_id" not in made
    assert "keep_warm" not in made


@pytest.mark.parametrize("kind", ["application/x-yaml", "application/yaml", "text/yaml"])
async def test_a_session_is_made_from_yaml(kind: str, client: httpx.AsyncClient) -> None:
    text = "name: one\nenv:\n  PORT: 8080\n  ON: yes\nidle_timeout: 15m\nmetadata: {n: 1}\n"
    answer = await client.post("/sessions", content=text, headers={"content-type": kind})
    assert answer.status_code == 200, answer.text
    made = answer.json()["session"]
    assert made["env"] == {"PORT": "8080", "ON": "yes"}
    assert (made["idle_timeout_seconds"], made["metadata"]) == (900, {"n": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: one\nsise: big\n", "Key 'sise' is not known (line 2)"),
        ("name: one\nname: two\n", "Key 'name' is there twice (line 2)"),
        ("a: &x 1\nb: *x\n", "anchors and aliases are not read (line 1)"),
        ("name: !!python/object:os.system {}\n", "Tags are not read (line 1)"),
        ("name: [1\n", "is not YAML"),
        ("name: one\nrepos: [x]\n", "key 'repos' is not fetched by this version"),
        *((nothing, "valid dictionary") for nothing in ("- a\n", "[]", "''", "0", "no")),
        ("a: b\n---\nc: d\n", "is not YAML"),
        ("x: 2024-99-99\n", "is not YAML"),
        ("name: one\nenv: {A: {b: c}}\n", "'env.A'"),
        ("[" * 200, "nested more than 32 deep"),
        ("keep_warm: 3\n", "'keep_warm'"),
        ("agent: claude-code\n", "'agent'"),
    ],
)
async def test_yaml_that_is_not_understood_is_refused(
    text: str, said: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post(
        "/sessions", content=text, headers={"content-type": "application/x-yaml"}
    )
    assert answer.status_code == 400, answer.text
    assert said.lower() in answer.json()["message"].lower()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "one", "sise": 1}', "Key 'sise' is not known"),
        ('{"name": "one", "name": "two"}', "Key 'name' is there twice"),
        ('{"idle_timeout": NaN}', "NaN is no number"),
        ('{"name": ', "is not JSON"),
        ('{"config_id": "x"}', "'name' is missing"),
        ("[" * 100_000, "cannot be read"),
        ('{"metadata": ' + '{"a":' * 40 + "1" + "}" * 41, "nested more than 32 deep"),
        ('{"labels": {"a": 1}}', "'labels.a'"),
        ('"text"', "valid dictionary"),
        ("null", "the body is null"),
        *((nothing, "valid dictionary") for nothing in ("[]", '""', "0", "false")),
    ],
)
async def test_json_that_is_not_understood_is_refused(
    text: str, said: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post(
        "/sessions", content=text, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    assert said.lower() in answer.json()["message"].lower()
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "---\n"])
async def test_a_session_is_made_of_yaml_that_says_nothing(
    text: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post(
        "/sessions", content=text, headers={"content-type": "application/x-yaml"}
    )
    assert answer.status_code == 200, answer.text


async def test_a_body_of_another_type_is_refused(client: httpx.AsyncClient) -> None:
    for path in ("/sessions", "/sessions/x/fork"):
        answer = await client.post(path, content="a=b", headers={"content-type": "text/plain"})
        assert (answer.status_code, answer.json()["id"]) == (415, "unsupported_media_type")


async def test_a_body_that_is_too_large_is_refused_whether_announced_or_not(
    client: httpx.AsyncClient,
) -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(40):
            yield b" " * (64 << 10)

    for content in (b" " * (2 << 20), pieces()):
        answer = await client.post(
            "/sessions", content=content, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["id"]) == (413, "body_too_large")


async def test_lists_are_paged_and_chosen_from(client: httpx.AsyncClient) -> None:
    for name in ("one", "two", "three"):
        await client.post("/sessions", json={"name": name, "labels": {"n": name[0]}})
    first = (await client.get("/sessions", params={"page_size": 2})).json()
    assert [each["name"] for each in first["sessions"]] == ["three", "two"]
    rest = (await client.get("/sessions", params={"page_token": first["next_page_token"]})).json()
    assert ([each["name"] for each in rest["sessions"]], rest["next_page_token"]) == (["one"], "")

    async def names(**params: str) -> list[str]:
        answer = await client.get("/sessions", params=params)
        assert answer.status_code == 200, answer.text
        return [each["name"] for each in answer.json()["sessions"]]

    assert await names(name="ONE") == ["one"]
    assert await names(search="t") == ["three", "two"]
    assert await names(label="n=o") == ["one"]
    await client.delete("/sessions/one")
    assert await names(status="SESSION_STATUS_DESTROYED") == ["one"]
    assert await names() == ["three", "two"]
    assert await names(status="SESSION_STATUS_ALL") == ["three", "two", "one"]
    # No session is ever locked, and a name alone decides.
    assert await names(status="SESSION_STATUS_LOCKED") == []
    assert await names(name="one") == []
    assert await names(name="two", status="SESSION_STATUS_PAUSED") == ["two"]
    assert await names(name="one", status="SESSION_STATUS_DESTROYED") == []
    assert await names(name="two", search="three", label="n=o") == ["two"]


@pytest.mark.parametrize(
    "query",
    [
        "status=GOOD",
        "page_token=nonsense",
        "label=x",
        "colour=red",
        "page_size=many",
        "name=a&name=b",
    ],
)
async def test_a_list_that_cannot_be_is_refused(query: str, client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/sessions?{query}")
    assert answer.status_code == 400
    assert answer.json()["message"]


async def test_a_session_is_called_by_name_or_by_the_beginning_of_its_id(api: Api) -> None:
    session = await api.ready(name="one")
    async with api.client() as client:
        for called in (session, "one", session[:8]):
            found = await client.get(f"/sessions/{called}")
            assert found.json()["session"]["session_id"] == session
        for called in (session[:3], "two", "%00", "a" * 65):
            assert (await client.get(f"/sessions/{called}")).status_code in (400, 404)


async def test_what_is_asked_twice_with_one_key_is_done_once(client: httpx.AsyncClient) -> None:
    key = {"idempotency-key": "k1"}
    first = (await client.post("/sessions", json={"name": "one"}, headers=key)).json()
    again = (await client.post("/sessions", json={"name": "one"}, headers=key)).json()
    assert first["session"]["session_id"] == again["session"]["session_id"]
    other = await client.post("/sessions", json={"name": "two"}, headers=key)
    assert (other.status_code, other.json()["id"]) == (409, "conflict")


async def test_a_name_that_is_taken_is_a_conflict(client: httpx.AsyncClient) -> None:
    await client.post("/sessions", json={"name": "one"})
    answer = await client.post("/sessions", json={"name": "one"})
    assert answer.status_code == 409
    assert "one" in answer.json()["message"]
    assert answer.json()["todo"]


async def test_no_room_is_told_with_what_is_free(api: Api, client: httpx.AsyncClient) -> None:
    api.host.memory = 0
    answer = await client.post("/sessions", json={"name": "one"})
    assert (answer.status_code, answer.json()["id"]) == (503, "no_room")
    assert answer.json()["facts"].keys() == {"needed", "free"}
    assert answer.headers["retry-after"]


async def test_sizes_are_listed_the_smallest_first(client: httpx.AsyncClient) -> None:
    sizes = (await client.get("/sessions/sandbox/sizes")).json()["sizes"]
    assert sizes[0]["slug"] == "mars-1vcpu-1gb"
    assert sizes[0]["price_per_hour_usd"] == 0.0535
    assert [each["memory_mb"] for each in sizes] == sorted(each["memory_mb"] for each in sizes)


async def test_only_what_is_known_can_be_changed(api: Api, client: httpx.AsyncClient) -> None:
    session = await api.ready()
    path = f"/sessions/{session}"
    for body in (
        {}, {"image": "x"}, {"resume_on_topoff": True}, {"resume_on_topoff": 0},
        {"idle_timeout": 1},
    ):  # fmt: skip
        assert (await client.patch(path, json=body)).status_code == 400, body
    assert (await client.patch(path, json={"resume_on_topoff": False})).status_code == 200
    for name in ("x" * 65, "a-", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"):
        assert (await client.patch(path, json={"name": name})).status_code == 400, name
    assert (await client.patch(path, json={"name": "x" * 64})).status_code == 200


async def test_one_that_has_failed_can_be_changed_and_one_that_is_destroyed_cannot(
    api: Api, client: httpx.AsyncClient
) -> None:
    path = f"/sessions/{await api.ready()}"
    machine = (await client.get(path)).json()["session"]["sandbox_id"]
    api.host.die(machine)

    async def status() -> str:
        return str((await client.get(path)).json()["session"]["status"])

    await eventually(status, lambda said: said == "SESSION_STATUS_FAILED")
    assert (await client.patch(path, json={"idle_timeout": 60})).status_code == 200
    await client.delete(path)
    answer = await client.patch(path, json={"idle_timeout": 90})
    assert (answer.status_code, answer.json()["id"]) == (409, "conflict")
    assert (await client.get(path)).json()["session"]["idle_timeout_seconds"] == 60
    assert (await client.patch("/sessions/nobody", json={"keep_warm": True})).status_code == 404


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("resume_on_topoff=false", 200),
        ("resume_on_topoff=0", 200),
        ("resume_on_topoff=true", 400),
        ("resume_on_topoff=1", 400),
        ("resume_on_topoff=no", 400),
        ("resume_on_topoff=", 400),
        ("openai_session_id=", 200),
        ("openai_session_id=sess_1", 400),
    ],
)
async def test_parameters_for_what_there_is_not_are_refused_unless_they_ask_for_nothing(
    client: httpx.AsyncClient, query: str, status: int
) -> None:
    answer = await client.post(f"/sessions?{query}", json={})
    assert answer.status_code == status, answer.text
    if status == 400:
        assert query.partition("=")[0] in answer.json()["message"]


async def test_the_parameter_is_believed_rather_than_the_key(client: httpx.AsyncClient) -> None:
    config = {"name": "web", "manifest_yaml": ""}
    assert (await client.post("/configs", json=config)).status_code == 201
    body = {"name": "one", "config_id": "web", "resume_on_topoff": True}
    answer = await client.post("/sessions", json=body)
    assert (answer.status_code, "balance" in answer.json()["message"]) == (400, True)
    assert (await client.post("/sessions?resume_on_topoff=false", json=body)).status_code == 200


async def test_the_device_is_told_of_with_what_was_done_from_it(api: Api) -> None:
    async with api.client(headers={"x-device-uuid": "laptop-1"}) as client:
        answer = await client.post("/sessions", params={"wait": "ready"}, json={"name": "one"})
        session = answer.json()["session"]["session_id"]
        await client.post("/sessions/one/pause")
        await client.post("/sessions/one/resume", headers={"x-device-uuid": "x" * 129})
        await client.post("/sessions/one/pause", headers={b"x-device-uuid": b"caf\xe9"})
        await client.delete("/sessions/one")
    found = [
        (event.type, event.data.get("device"))
        for event in await api.events(session)
        if event.type in ("session.created", "session.paused", "session.resumed", LAST)
    ]
    assert found == [
        ("session.created", "laptop-1"),
        ("session.paused", "laptop-1"),
        ("session.resumed", None),
        ("session.paused", None),
        (LAST, "laptop-1"),
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("application/json", '{"metadata": {"a": "\\ud800"}}'),
        ("application/json", '{"metadata": {"a": [{"\\udc80": 1}]}}'),
        ("application/json", '{"metadata": {"a": 1e999}}'),
        ("application/json", '{"metadata": {"a": ' + "9" * 3000 + "}}"),
        ("application/yaml", "metadata: {a: 2024-01-01}"),
        ("application/yaml", "metadata: {a: .nan}"),
        ("application/yaml", "metadata: {a: .inf}"),
        ("application/yaml", "metadata: {a: 0x" + "f" * 5000 + "}"),
        ("application/yaml", 'metadata: {a: "\\ud800"}'),
    ],
)
async def test_what_could_be_kept_and_not_be_answered_is_refused(
    kind: str, text: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/sessions", content=text, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["id"]) == (400, "invalid_request"), answer.text
    assert (await client.get("/sessions")).json()["sessions"] == []
