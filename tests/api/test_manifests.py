"""Manifests in their two formats, and what is said of their policies."""

import textwrap

import httpx
import pytest

YAML = {"content-type": "application/x-yaml"}
OLDER = """\
apiVersion: agents.digitalocean.com/v1alpha1
kind: Agent
metadata:
  name: one
  description: builds things
  labels:
    build: 1.10
spec:
  runtime:
    adapter: none
  sandbox:
    sizeSlug: mars-2vcpu-1gb
    idleTimeoutSeconds: 900
    template: coding
    persistentWorkspace: false
  env:
    PORT: 8080
    ON: yes
  x-torpor:
    image: default
    keepWarm: true
    metadata: {n: 1}
"""
FLAT = """\
name: one
description: builds things
labels: {build: 1.10}
size: mars-2vcpu-1gb
idle_timeout: 15m
env: {PORT: 8080, ON: yes}
image: default
keep_warm: true
metadata: {n: 1}
"""


async def test_both_formats_make_the_same_session(client: httpx.AsyncClient) -> None:
    made = []
    for text in (FLAT, OLDER):
        answer = await client.post("/sessions", content=text, headers=YAML)
        assert answer.status_code == 200, answer.text
        made.append(answer.json()["session"])
        await client.delete(f"/sessions/{made[-1]['session_id']}")
    flat, older = made
    assert "warnings" not in flat
    assert ["deprecated" in each for each in older["warnings"]] == [True]
    for name in ("name", "env", "labels", "size", "image", "keep_warm", "metadata"):
        assert flat[name] == older[name], name
    assert (flat["labels"], flat["env"]) == ({"build": "1.10"}, {"PORT": "8080", "ON": "yes"})
    assert flat["idle_timeout_seconds"] == older["idle_timeout_seconds"] == 900
    configs = [
        (await client.get(f"/configs/{each['config_id']}")).json()["config"] for each in made
    ]
    assert configs[0]["content_hash"] == configs[1]["content_hash"]
    assert configs[0]["manifest"] == configs[1]["manifest"]
    assert [each["agentspec_schema_version"] for each in configs] == [
        "agents.digitalocean.com/flat.v1", "agents.digitalocean.com/v1alpha1",
    ]  # fmt: skip


async def test_below_other_keys_of_either_format_values_are_what_yaml_says(
    client: httpx.AsyncClient,
) -> None:
    text = "metadata: {labels: {a: 1}, spec: {env: {b: yes}}}\n"
    made = (await client.post("/sessions", content=text, headers=YAML)).json()["session"]
    assert made["metadata"] == {"labels": {"a": 1}, "spec": {"env": {"b": True}}}


@pytest.mark.parametrize(("sandbox", "own", "seconds"), [
    ("idleTimeoutSeconds: 0", "{}", None),
    ("idleTimeoutSeconds: 60", "{}", 60),
    ("idleTimeoutSeconds: 0", "{idleTimeoutSeconds: 0}", 0),
])  # fmt: skip
async def test_no_idle_timeout_there_is_the_servers_own(
    client: httpx.AsyncClient, sandbox: str, own: str, seconds: int | None
) -> None:
    text = (
        "apiVersion: agents.digitalocean.com/v1alpha1\nkind: Agent\nspec:\n"
        f"  runtime: {{adapter: none}}\n  sandbox: {{{sandbox}}}\n  x-torpor: {own}\n"
    )
    answer = await client.post("/sessions", content=text, headers=YAML)
    assert answer.json()["session"].get("idle_timeout_seconds") == seconds, answer.text


def older(spec: str, head: str = "") -> str:
    return (
        f"apiVersion: agents.digitalocean.com/v1alpha1\nkind: Agent\n{head}spec:\n"
        f"  runtime: {{adapter: none}}\n{spec}"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: v2\nkind: Agent\nspec: {}\n", "'apiVersion'"),
        ("apiVersion: agents.digitalocean.com/v1alpha1\nkind: Agent\n", "'spec' is missing"),
        ("apiVersion: agents.digitalocean.com/v1alpha1\nspec: {}\n", "'kind' is missing"),
        (older("").replace("none", "codex"), "adapter 'codex' needs an agent"),
        (older("  permissions: {}\n"), "key 'permissions' needs an agent"),
        (older("  secrets: []\n"), "key 'secrets' needs the gateway"),
        (older("  sandbox: {egress: {}}\n"), "'spec.sandbox.egress': it says nothing"),
        (older("  sandbox: {egress: {vpcUuid: x}}\n"), "there are no VPCs here"),
        (older("  sandbox: {egress: none}\n  x-torpor: {egress: none}\n"), "two policies"),
        (older("  sandbox:\n    egress:\n"), "'spec.sandbox.egress': it is empty"),
        (older("  sandbox: {persistentWorkspace: 1}\n"), "'spec.sandbox.persistentWorkspace'"),
        (older("  sandbox: {template: [mine]}\n"), "'spec.sandbox.template'"),
        (older("  sandbox:\n    sise: x\n"), "Key 'spec.sandbox.sise' is not known (line 6)"),
        (older("  mode: served\n"), "'spec.mode'"),
        (older("  sandbox: {idleTimeoutSeconds: -1}\n"), "'spec.sandbox.idleTimeoutSeconds'"),
        (older("  x-torpor: {idleTimeoutSeconds: false}\n"), "'spec.x-torpor.idleTimeoutSeconds'"),
        (older("  sandbox: {idleTimeoutSeconds: 60}\n  x-torpor: {idleTimeoutSeconds: 0}\n"),
         "two idle timeouts"),
        (older("", "size: x\n"), "Key 'size' is not known (line 3)"),
    ],
)  # fmt: skip
async def test_an_envelope_that_asks_for_more_is_refused(
    client: httpx.AsyncClient, text: str, said: str
) -> None:
    answer = await client.post("/sessions", content=text, headers=YAML)
    assert answer.status_code == 400, answer.text
    assert said.lower() in answer.json()["message"].lower()


async def test_a_credential_is_warned_of(client: httpx.AsyncClient) -> None:
    answer = await client.post("/sessions", json={"env": {"KEY": "ghp_" + "x" * 36}})
    assert ["KEY" in each for each in answer.json()["session"]["warnings"]] == [True]
    session = answer.json()["session"]["session_id"]
    assert "warnings" not in (await client.get(f"/sessions/{session}")).json()["session"]


# Policies


VALIDATE = "/sessions/policy/validate"
RULES = """\
  rules:
    - {tool: bash, action: ask, match: {command: npm run deploy}}
    - {tool: git.*, action: deny}
    - {tool: mcp, action: deny, enforcement: best-effort}
"""


@pytest.mark.parametrize(
    "text", [FLAT, OLDER, "permissions: {}\n", "permissions:\n", older("  permissions: {}\n")]
)
async def test_no_policy_can_be_kept(client: httpx.AsyncClient, text: str) -> None:
    answer = await client.post(VALIDATE, content=text, headers=YAML)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"ok": True, "agent": "none", "defaultAction": "ask", "verdicts": []}
    assert (await client.get("/sessions")).json()["sessions"] == []


@pytest.mark.parametrize(
    "text",
    [
        "permissions:\n  default: deny\n" + RULES,
        older("  permissions:\n    defaultAction: deny\n" + textwrap.indent(RULES, "  ")),
    ],
)  # fmt: skip
async def test_without_an_agent_no_rule_can_be_kept(client: httpx.AsyncClient, text: str) -> None:
    answer = await client.post(VALIDATE, content=text, headers=YAML)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["ok"], said["defaultAction"]) == (False, "deny")
    assert [each["verdict"] for each in said["verdicts"]] == ["unsupported"] * 3
    assert all(each["reason"].startswith("No agent") for each in said["verdicts"])
    rules = [each["rule"] for each in said["verdicts"]]
    assert [each["enforcement"] for each in rules] == ["best-effort", "strict", "best-effort"]
    assert rules[0]["match"] == {"command": "npm run deploy"}
    assert len({each["id"] for each in rules}) == 3
    again = await client.post(VALIDATE, content=text, headers=YAML)
    assert again.json() == said


async def test_rules_that_need_not_be_kept_are_no_reason_to_refuse(
    client: httpx.AsyncClient,
) -> None:
    text = "permissions: {rules: [{tool: bash, action: allow}]}\n"
    said = (await client.post(VALIDATE, content=text, headers=YAML)).json()
    assert (said["ok"], said["verdicts"][0]["verdict"]) == (True, "unsupported")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the body is missing"),
        ("sise: 3\n", "'sise' is not known (line 1)"),
        ("size: huge\n", "no size 'huge'"),
        ("permissions:\n  rules:\n    - tool: x\n", "'rules.0.action' is missing"),
        ("permissions:\n  default: maybe\n", "'default'"),
        ("permissions:\n  sise: 1\n", "'sise' is not known (line 2)"),
        ("permissions: {network: {}}\n", "'egress' says what is reached"),
        ("permissions: 3\n", "valid dictionary"),
    ],
)
async def test_a_policy_that_is_none_is_refused(
    client: httpx.AsyncClient, text: str, said: str
) -> None:
    answer = await client.post(VALIDATE, content=text, headers=YAML)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["message"].lower()
