"""The OpenAPI document says all that a client needs."""

import inspect
import re
from typing import Any

import pytest

from tests.api.conftest import Api
from torpor.api.document import document, page
from torpor.api.permissions import Permission, needs_of

METHODS = ("get", "put", "post", "patch", "delete")


@pytest.fixture
def made(api: Api) -> dict[str, Any]:
    """The document."""
    return document(api.app)


def operations(made: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return all operations with their path and method."""
    return [
        (path, method, operation)
        for path, methods in made["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_is_in_it(api: Api, made: dict[str, Any]) -> None:
    for route in api.app.routes:
        methods = getattr(route, "methods", None) or {"GET"}
        for method in methods - {"HEAD"}:
            assert method.lower() in made["paths"][route.path], route  # type: ignore[attr-defined]


def test_every_operation_has_a_name_of_its_own_a_summary_and_a_description(
    made: dict[str, Any],
) -> None:
    names = [operation["operationId"] for _, _, operation in operations(made)]
    assert len(set(names)) == len(names)
    for path, method, operation in operations(made):
        assert re.fullmatch("[a-z_]+", operation["operationId"]), path
        assert operation["summary"], (path, method)
        assert len(operation["description"]) > 20, (path, method)
        assert method in METHODS


def test_every_operation_documents_its_answers_with_examples(made: dict[str, Any]) -> None:
    for path, method, operation in operations(made):
        statuses = set(operation["responses"])
        assert statuses & {"200", "201", "202", "204", "101"}, (path, method)
        if operation["security"]:
            assert {"401", "403", "429"} <= statuses, (path, method)
        if "{session_id}" in path:
            assert "404" in statuses, (path, method)
        if "requestBody" in operation or operation.get("parameters"):
            assert statuses & {"400", "404"}, (path, method)
        for status, answer in operation["responses"].items():
            assert answer["description"], (path, status)
            if status >= "400":
                content = answer["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Error"}, path
                assert content["example"].keys() >= {"id", "message", "request_id"}


def test_what_every_route_may_answer_is_documented(api: Api, made: dict[str, Any]) -> None:
    for route in api.app.routes:
        wanted = needs_of(route)
        assert wanted is not None
        for method in getattr(route, "methods", None) or ():
            statuses = set(made["paths"][route.path][method.lower()]["responses"])  # type: ignore[attr-defined]
            # A parameter that no route knows.
            assert "400" in statuses, route
            if wanted.permission is not Permission.NONE:
                assert "503" in statuses, route  # the database is busy
            source = inspect.getsource(route.endpoint)  # type: ignore[attr-defined]
            stops = "body_pieces(" in source or "_checked(request" in source
            assert ("408" in statuses) is stops, route  # a body stops coming
            if method != "GET":
                assert "507" in statuses, route  # there is no room to tell of it
                assert "413" in statuses or wanted.body_limit is None, route


def test_answers_have_the_keys_that_are_documented(made: dict[str, Any]) -> None:
    assert made["components"]["schemas"]["PolicyVerdicts"]["properties"].keys() == {
        "ok", "agent", "defaultAction", "verdicts",
    }  # fmt: skip


def test_every_parameter_and_every_key_is_described_or_speaks_for_itself(
    made: dict[str, Any],
) -> None:
    for path, _, operation in operations(made):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            said = parameter.get("description") or schema.get("description")
            assert said or parameter["name"] in ("checkpoint_id", "pid", "page_size", "port"), (
                path, parameter,
            )  # fmt: skip
    schemas = made["components"]["schemas"]
    for name in ("NewSessionBody", "SessionBody", "CheckpointBody", "RunBody", "StartBody"):
        for key, schema in schemas[name]["properties"].items():
            assert schema.get("description") or schema.get("examples"), (name, key)
    for name, schema in schemas.items():
        assert schema.get("description"), name


def test_nothing_of_a_route_runs_in_a_thread(api: Api) -> None:
    def all_calls(dependant: Any) -> list[Any]:
        inner = [call for each in dependant.dependencies for call in all_calls(each)]
        return [dependant.call, *inner]

    for route in api.app.routes:
        for call in all_calls(route.dependant):  # type: ignore[attr-defined]
            assert inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call), call


def test_every_reference_leads_somewhere(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str):
                assert reference.removeprefix("#/components/schemas/") in schemas
            for each in node.values():
                walk(each)
        elif isinstance(node, list):
            for each in node:
                walk(each)

    walk(made)
    assert not {"HTTPValidationError", "ValidationError"} & schemas.keys()


def test_requests_refuse_unknown_keys_in_the_document_too(made: dict[str, Any]) -> None:
    for _, _, operation in operations(made):
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        for reference in (schema, *schema.get("anyOf", ())):
            if "$ref" in reference:
                name = reference["$ref"].rpartition("/")[2]
                assert made["components"]["schemas"][name]["additionalProperties"] is False


def test_what_needs_a_token_says_so(api: Api, made: dict[str, Any]) -> None:
    assert made["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for route in api.app.routes:
        wanted = needs_of(route)
        operation = next(iter(made["paths"][route.path].values()))  # type: ignore[attr-defined]
        assert wanted is not None
        signed = route.path.startswith("/v2/agents/signed/")  # type: ignore[attr-defined]
        assert (operation["security"] == []) is (signed or wanted.permission is Permission.NONE)


def test_the_page_has_every_route_and_loads_nothing_from_elsewhere(made: dict[str, Any]) -> None:
    text = page(made)
    for path in made["paths"]:
        assert path in text
    assert "<script" not in text
    assert "http" not in re.sub(r"<code>[^<]*</code>|HTTP|http\.server|https?:?", "", text)
