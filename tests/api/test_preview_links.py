"""Who may use a preview, links to it, and what keeps one preview from another."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.apps import App, Asked, answer, read_body, running
from tests.api.conftest import BASE, Api, previewed
from tests.api.test_preview import TOKEN, browser, header
from tests.waiting import eventually
from torpor.api.preview.addresses import Addresses
from torpor.api.preview.pages import redirect
from torpor.sessions.model import SYSTEM
from torpor.settings import Settings
from torpor.store.records import Status

NOBODY_ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


def stranger(api: Api, session: str, port: int, **headers: str) -> httpx.AsyncClient:
    """Return a client that shows nothing by itself."""
    client = browser(api, session, port, headers=headers)
    del client.headers[TOKEN]
    return client


async def share(api: Api, session: str, port: int, **wanted: Any) -> dict[str, Any]:
    """Make a link."""
    async with api.client() as client:
        made = await client.post(f"/sessions/{session}/previews", json={"port": port, **wanted})
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()["preview"]
        return found


async def raw(api: Api, head: str) -> bytes:
    """Send a head as it is, and return what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.addresses.port)
    writer.write(head.encode() + b"Connection: close\r\n\r\n")
    said = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return said


def arrival(link: dict[str, Any]) -> str:
    """Return the path with which somebody comes by a link."""
    return "/" + str(link["link_url"]).partition("/?")[2].join(("?", ""))


# Who may


async def test_nobody_gets_the_same_answer_whatever_there_is_and_wakes_nothing(
    api: Api, one: str
) -> None:
    await api.sessions.pause(one, SYSTEM)
    answers = set()
    async with running() as app, previewed(api):
        for session, port in ((one, app.port), (one, 1), (NOBODY_ID, app.port)):
            for headers in (
                {},
                {TOKEN: "Bearer torpor_0123456789abcdef_x"},
                {TOKEN: "Basic x"},
                {"authorization": "Bearer torpor_0123456789abcdef_x"},
                {"cookie": "torpor_preview=WyJ4Il0.AAAA"},
            ):
                async with stranger(api, session, port, **headers) as client:
                    found = await client.get("/")
                    answers.add((found.status_code, found.text, str(found.headers)))
                    found = await client.get("/?torpor_link=WyJ4Il0.AAAA")
                    answers.add((found.status_code, found.text, str(found.headers)))
        assert len(answers) == 1
        assert next(iter(answers))[0] == 401
        assert app.asked == []
    assert (await api.sessions.get(one)).status is Status.PAUSED


async def test_a_role_that_may_not_use_sessions_may_not_look_through_them(
    api: Api, one: str
) -> None:
    async with running() as app, previewed(api):
        for role in ("viewer", "approver"):
            async with stranger(api, one, app.port) as client:
                token = api.tokens[role]  # type: ignore[index]
                found = await client.get("/", headers={TOKEN: f"Bearer {token}"})
                assert found.status_code == 403
        assert app.asked == []


async def test_a_token_shows_itself_in_two_ways_and_stays_here(api: Api, one: str) -> None:
    secret = api.tokens["operator"]
    async with running() as app, previewed(api), stranger(api, one, app.port) as client:
        assert (await client.get("/", headers={TOKEN: f"Bearer {secret}"})).status_code == 200
        usual = {"authorization": f"Bearer {secret}"}
        assert (await client.get("/", headers=usual)).status_code == 200
        both = {TOKEN: f"Bearer {secret}", "authorization": "Bearer of-the-program"}
        assert (await client.get("/", headers=both)).status_code == 200
        assert header(app.asked[-1], "authorization") == "Bearer of-the-program"
        assert secret not in str([each.headers for each in app.asked])
        # One that is wrong is not made good by another one that is right.
        wrong = {TOKEN: "Bearer torpor_x_y", "authorization": f"Bearer {secret}"}
        assert (await client.get("/", headers=wrong)).status_code == 401
        twice = [(TOKEN, f"Bearer {secret}"), (TOKEN, f"Bearer {secret}")]
        assert (await client.get("/", headers=twice)).status_code == 401


async def test_what_a_token_has_under_way_ends_with_it(api: Api, one: str) -> None:
    begun = asyncio.Event()

    async def wait(asked: Asked, _: App) -> None:
        begun.set()
        await asked.connection.reader.read()

    made, text = await api.bearers.make("x", "operator")
    async with running(wait=wait) as app, previewed(api), stranger(api, one, app.port) as client:
        asking = asyncio.create_task(client.get("/wait", headers={TOKEN: f"Bearer {text}"}))
        await begun.wait()
        await api.bearers.revoke(made.id)
        assert (await asyncio.wait_for(asking, 10)).status_code == 401


async def test_without_authentication_other_pages_may_not(
    tmp_path: Path, database_url: str
) -> None:
    api = await Api(tmp_path, database_url, authentication="none").open()
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=api.app), base_url=f"http://localhost{BASE}"
        ) as client:
            made = await client.post("/sessions", params={"wait": "ready"}, json={})
        session = made.json()["session"]["session_id"]
        async with running() as app, previewed(api), stranger(api, session, app.port) as client:
            own = f"http://{client.headers['host']}"
            for headers, status in (
                ({}, 200),
                ({"origin": own}, 200),
                ({"sec-fetch-site": "same-origin"}, 200),
                ({"origin": "http://evil.example"}, 401),
                ({"origin": "null"}, 401),
                ({"sec-fetch-site": "cross-site"}, 401),
                ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 401),
            ):
                assert (await client.get("/", headers=headers)).status_code == status, headers
    finally:
        await api.close()


# Links


async def test_a_link_opens_its_port_to_who_has_no_token(api: Api, one: str) -> None:
    async with running() as app, previewed(api):
        link = await share(api, one, app.port, label="for Ana")
        assert link["url"] == api.addresses.url(one, app.port)
        async with stranger(api, one, app.port) as client:
            found = await client.get("/a/b?x=1&" + arrival(link)[2:] + "&y=%2f")
            assert found.status_code == 303
            assert found.headers["location"] == "/a/b?x=1&y=%2f"
            cookie = found.headers["set-cookie"]
            assert re.search("; Path=/; Max-Age=8[56]\\d{3}; HttpOnly; SameSite=Lax$", cookie)
            assert "Domain" not in cookie
            assert "Secure" not in cookie
            assert (await client.get(found.headers["location"])).status_code == 200
            (asked,) = app.asked
            assert asked.target == "/a/b?x=1&y=%2f"
            assert "torpor_preview" not in str(asked.headers)
            await client.get("/", headers={"cookie": f"{cookie.partition(';')[0]}; own=1"})
            assert header(app.asked[-1], "cookie") == "own=1"
    kinds = [
        each for each in await api.events(one) if each.type in ("preview.shared", "port.opened")
    ]
    assert [each.type for each in kinds] == ["preview.shared", "port.opened"]
    assert kinds[0].data["label"] == "for Ana"
    assert kinds[1].data["preview"] == link["preview_id"]


async def test_a_link_is_good_for_its_own_session_and_port_alone(api: Api, one: str) -> None:
    other = await api.ready(name="two")
    async with running() as app, running() as second, previewed(api):
        link = await share(api, one, app.port)
        async with stranger(api, one, app.port) as client:
            cookie = (await client.get(arrival(link))).headers["set-cookie"].partition(";")[0]
        for session, port in ((one, second.port), (other, app.port), (NOBODY_ID, app.port)):
            async with stranger(api, session, port) as client:
                assert (await client.get(arrival(link))).status_code == 401
                assert (await client.get("/", headers={"cookie": cookie})).status_code == 401
        async with stranger(api, one, app.port) as client:
            # A neighbour may have set cookies of the same name for all of us.
            both = f"torpor_preview=WyJ4Il0.AAAA; {cookie}"
            assert (await client.get("/", headers={"cookie": both})).status_code == 200
        assert second.asked == []


async def test_a_header_or_a_path_leads_to_no_other_session(api: Api, one: str) -> None:
    other = await api.ready(name="two")
    token = f"Bearer {api.tokens['operator']}"
    async with running() as app, running() as second, previewed(api):
        neighbour = f"{second.port}-{other}.localhost"
        async with browser(api, one, app.port) as client:
            for name in ("x-forwarded-host", "forwarded", "x-original-url", "x-rewrite-url", "via"):
                assert (await client.get("/", headers={name: neighbour})).status_code == 200
            assert (await client.get(f"/s/{other}/{second.port}/")).status_code == 200
        own = f"{app.port}-{one}.localhost"
        for host, target in (
            (own, f"/../../s/{other}/{second.port}/"),
            (own, f"//{neighbour}/"),
            ("localhost", f"/s/{one}/{app.port}/../../{other}/{second.port}/"),
            ("localhost", f"/s/{one}/{app.port}/..%2f..%2f{other}%2f{second.port}/"),
        ):
            said = await raw(api, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{TOKEN}: {token}\r\n")
            assert said.startswith(b"HTTP/1.1 200 "), target
        assert second.asked == []
        assert {each.all("x-forwarded-host")[0] for each in app.asked} != {neighbour}
        assert all(neighbour not in each.all("x-forwarded-host") for each in app.asked)


async def test_a_link_ends_when_it_is_revoked_and_so_does_what_is_under_way(
    api: Api, one: str
) -> None:
    begun = asyncio.Event()

    async def wait(asked: Asked, _: App) -> None:
        begun.set()
        await asked.connection.reader.read()

    async with running(wait=wait) as app, previewed(api), api.client() as asker:
        link, kept = await share(api, one, app.port), await share(api, one, app.port)
        async with stranger(api, one, app.port) as client:
            await client.get(arrival(link))
            asking = asyncio.create_task(client.get("/wait"))
            await begun.wait()
            where = f"/sessions/{one}/previews/{link['preview_id']}"
            assert (await asker.delete(where)).status_code == 204
            assert (await asyncio.wait_for(asking, 10)).status_code == 401
            assert (await client.get("/")).status_code == 401
            assert (await client.get(arrival(link))).status_code == 401
            assert (await client.get(arrival(kept))).status_code == 303
            assert (await asker.delete(where)).status_code == 204  # once more
        assert (await asker.delete(f"/sessions/{one}/previews/pv_none")).status_code == 404
    types = [each.type for each in await api.events(one)]
    assert types.count("preview.revoked") == 1


async def test_a_link_ends_with_its_time(api: Api, one: str) -> None:
    async with running() as app, previewed(api):
        link = await share(api, one, app.port, expires_in_seconds=4)
        async with stranger(api, one, app.port) as client:
            assert (await client.get(arrival(link))).status_code == 303

            async def status() -> int:
                return (await client.get("/")).status_code

            await eventually(status, lambda found: found == 401)

            async def arriving() -> int:
                return (await client.get(arrival(link))).status_code

            await eventually(arriving, lambda found: found == 401)


async def test_a_link_ends_with_the_token_that_made_it_and_with_its_session(
    api: Api, one: str
) -> None:
    made, text = await api.bearers.make("x", "operator")
    async with running() as app, previewed(api):
        async with api.client(headers={"authorization": f"Bearer {text}"}, role=None) as client:
            answered = await client.post(f"/sessions/{one}/previews", json={"port": app.port})
        link, other = answered.json()["preview"], await share(api, one, app.port)
        async with stranger(api, one, app.port) as client:
            assert (await client.get(arrival(link))).status_code == 303
            await api.bearers.revoke(made.id)
            assert (await client.get(arrival(link))).status_code == 401
            assert (await client.get(arrival(other))).status_code == 303
            await api.sessions.destroy(one, SYSTEM)
            assert (await client.get(arrival(other))).status_code == 401


async def test_who_comes_by_a_link_is_not_told_why_a_session_fails(api: Api, one: str) -> None:
    machine = (await api.sessions.get(one)).machine or ""
    async with running() as app, previewed(api):
        link = await share(api, one, app.port)
        api.host.die(machine, "/srv/home-of-the-host is torn")

        async def failed() -> Status:
            return (await api.sessions.get(one)).status

        await eventually(failed, lambda found: found is Status.FAILED)
        async with stranger(api, one, app.port) as client:
            await client.get(arrival(link))
            found = await client.get("/")
            assert found.status_code == 409
            assert "home-of-the-host" not in found.text
        async with browser(api, one, app.port) as client:
            found = await client.get("/")
            assert found.status_code == 409
            assert "home-of-the-host" in found.text


async def test_what_is_signed_for_one_thing_is_good_for_no_other(api: Api, one: str) -> None:
    who = api.bearers.find(api.tokens["operator"])
    assert who is not None
    async with running() as app, previewed(api):
        link = await share(api, one, app.port)
        claims = {"link": link["preview_id"]}
        other = api.signer.path("transfer", who, claims, seconds=60).rpartition("/")[2]
        async with stranger(api, one, app.port) as client:
            assert (await client.get(f"/?torpor_link={other}")).status_code == 401
        async with api.client(None) as client:
            token = arrival(link).partition("=")[2]
            assert (await client.get(f"/signed/{token}")).status_code == 404
        # Nor one that was signed and is noted nowhere.
        text = api.signer.path("preview", who, {"link": "pv_none"}, seconds=60).rpartition("/")[2]
        async with stranger(api, one, app.port) as client:
            assert (await client.get(f"/?torpor_link={text}")).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "//evil.example/%2e%2e", "/\\evil.example", "///evil.example", "/\\/evil",
     "/%5cevil.example", "/.//evil.example", "//evil.example//x", "/%09/evil.example"],
)  # fmt: skip
async def test_a_link_redirects_to_its_own_origin_alone(api: Api, one: str, path: str) -> None:
    async with running() as app, previewed(api):
        link = await share(api, one, app.port)
        host = f"{app.port}-{one}.localhost"
        said = await raw(api, f"GET {path}{arrival(link)[1:]} HTTP/1.1\r\nHost: {host}\r\n")
    assert said.startswith(b"HTTP/1.1 303 ")
    (location,) = re.findall(rb"location: (.*)\r\n", said)
    assert re.match(rb"/(?![/\\])", location), location


def test_no_redirect_of_ours_begins_with_two_slashes() -> None:
    for target in ("", "/", "//x", "/\\x", "\\\\x", "///", "x", "https://evil"):
        location = dict(redirect(303, target).headers)[b"location"].decode()
        assert re.match(r"/(?![/\\])", location)


async def test_other_pages_cannot_use_the_cookie(api: Api, one: str) -> None:
    async with running() as app, previewed(api):
        link = await share(api, one, app.port)
        async with stranger(api, one, app.port) as client:
            await client.get(arrival(link))
            own = f"http://{client.headers['host']}"
            leads = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
            for method, headers, status in (
                ("GET", {"sec-fetch-site": "same-origin"}, 200),
                ("POST", {"origin": own, "sec-fetch-site": "same-origin"}, 200),
                ("GET", {"sec-fetch-site": "cross-site", **leads}, 200),
                ("POST", {"sec-fetch-site": "cross-site", **leads}, 401),
                ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 401),
                ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate",
                         "sec-fetch-dest": "iframe"}, 401),
                ("POST", {"origin": f"http://{app.port}-{NOBODY_ID}.localhost"}, 401),
                ("POST", {"origin": "null"}, 401),
            ):  # fmt: skip
                found = await client.request(method, "/", headers=headers)
                assert found.status_code == status, (method, headers)


# Paths


async def test_a_path_serves_programs_with_a_token_and_people_with_a_link(
    api: Api, one: str
) -> None:
    async def cookies(asked: Asked, _: App) -> None:
        await read_body(asked)
        said = json.dumps(asked.all("cookie")).encode()
        head = ("set-cookie", "a=1; Domain=localhost; Path=/x; HttpOnly")
        policy = ("content-security-policy", "default-src 'self'")
        worker = ("service-worker-allowed", "/")
        await answer(asked, said, head, ("set-cookie", "torpor_preview=x"), policy, worker)

    async with running(cookies=cookies) as app, previewed(api) as port:
        link = await share(api, one, app.port)
        token = arrival(link).partition("=")[2]
        base = f"http://127.0.0.1:{port}"
        show = {TOKEN: f"Bearer {api.tokens['operator']}"}
        async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
            for prefix, headers in ((f"/s/{one}/{app.port}", show), (f"/l/{token}", {})):
                found = await client.get(f"{prefix}/a//b?c=%2f", headers=headers)
                assert found.status_code == 200
                assert found.json()["target"] == "/a//b?c=%2f"
                assert header(app.asked[-1], "x-forwarded-prefix") == prefix
                assert "sandbox" in found.headers["content-security-policy"]
                found = await client.get(f"{prefix}?x", headers=headers)
                assert (found.status_code, found.headers["location"]) == (308, f"{prefix}/?x")
                # Cookies of other programs at this host are not for this one.
                sent = {"cookie": f"b=2; torpor-{one}-{app.port}-a=1", **headers}
                found = await client.get(f"{prefix}/cookies", headers=sent)
                assert found.json() == ["a=1"]
                assert found.headers.get_list("set-cookie") == [
                    f"torpor-{one}-{app.port}-a=1; HttpOnly; Path={prefix}/"
                ]
                assert "service-worker-allowed" not in found.headers
                policies = found.headers.get_list("content-security-policy")
                assert policies[0] == "default-src 'self'"
                assert "allow-same-origin" not in policies[1]
            assert (await client.get(f"/s/{one}/{app.port}/")).status_code == 401
            for path in ("/", "/s/", f"/s/one/{app.port}/", f"/s/{one}/0/", f"/s/{one}/65536/"):
                assert (await client.get(path, headers=show)).status_code == 404
            assert (await client.get("/", headers={"host": "evil.example"})).status_code == 404


async def test_redirects_and_cookies_of_the_session_stay_where_it_is_seen(
    api: Api, one: str
) -> None:
    async def lead(asked: Asked, app: App) -> None:
        await read_body(asked)
        to = asked.target.partition("?")[2].replace("PORT", str(app.port))
        cookie = ("set-cookie", "a=1; domain=localhost; Secure")
        await answer(asked, b"", ("location", to), cookie, status=302)

    async with running(lead=lead) as app, previewed(api) as port:
        show = {TOKEN: f"Bearer {api.tokens['operator']}"}
        own = api.addresses.url(one, app.port).rstrip("/")
        async with browser(api, one, app.port) as client:
            for said, seen in (
                ("http://localhost:PORT/x?y", f"{own}/x?y"),
                ("http://127.0.0.1:PORT", f"{own}/"),
                ("/x", "/x"),
                ("x", "x"),
                ("https://example.com/x", "https://example.com/x"),
                ("http://localhost:1/x", "http://localhost:1/x"),
            ):
                found = await client.get(f"/lead?{said}")
                assert found.headers["location"] == seen
                assert found.headers["set-cookie"] == "a=1; Secure"
        prefix = f"/s/{one}/{app.port}"
        async with httpx.AsyncClient(headers=show, trust_env=False) as client:
            base = f"http://127.0.0.1:{port}"
            for said, seen in (
                ("http://localhost:PORT/x", f"{base}{prefix}/x"),
                ("/x", f"{prefix}/x"),
                ("//evil", "//evil"),
                ("x", "x"),
            ):
                found = await client.get(f"{base}{prefix}/lead?{said}")
                assert found.headers["location"] == seen


async def test_what_says_who_one_is_cannot_be_forged(api: Api, one: str) -> None:
    forged = {
        "x-forwarded-for": "10.0.0.1",
        "X_Forwarded_For": "10.0.0.1",
        "x-forwarded-proto": "https",
        "x-forwarded-anything": "x",
        "forwarded": "for=10.0.0.1",
        "x-real-ip": "10.0.0.1",
        "te": "trailers",
        "proxy-authorization": "Basic x",
        "connection": "x-secret, keep-alive",
        "x-secret": "1",
        "x-kept": "1",
    }
    async with running() as app, previewed(api), browser(api, one, app.port) as client:
        own = f"http://{client.headers['host']}"
        await client.get("/", headers={**forged, "origin": own})
        (asked,) = app.asked
        assert "10.0.0.1" not in str(asked.headers)
        assert header(asked, "x-forwarded-proto") == "http"
        for name in ("x-forwarded-anything", "te", "proxy-authorization", "x-secret", "connection"):
            assert asked.all(name) == [], name
        assert header(asked, "x-kept") == "1"
        assert header(asked, "origin") == f"http://localhost:{app.port}"
        await client.get("/", headers={"origin": "http://other.example"})
        assert header(app.asked[-1], "origin") == "http://other.example"


# The API


async def test_where_a_port_is_reached_is_said_without_waking(api: Api, one: str) -> None:
    await api.sessions.pause(one, SYSTEM)
    async with api.client("viewer") as client:
        found = (await client.get(f"/sessions/{one}/ingress")).json()["ingress_url"]
        assert found["url"] == f"http://8000-{one}.localhost:{api.addresses.port}/"
        assert (found["port"], found["state"]) == (8000, "INGRESS_URL_STATE_READY")
        assert found["ingress_url_id"] == f"{one}-8000"
        again = (await client.get(f"/sessions/{one}/ingress?port=3")).json()["ingress_url"]
        assert again["url"].startswith("http://3-")
        assert (await client.get(f"/sessions/{one}/ingress?port=0")).status_code == 400
        assert (await client.get("/sessions/none/ingress")).status_code == 404
    assert (await api.sessions.get(one)).status is Status.PAUSED
    await api.sessions.destroy(one, SYSTEM)
    async with api.client() as client:
        assert (await client.get(f"/sessions/{one}/ingress")).status_code == 404


async def test_links_are_made_once_for_a_key_listed_and_refused(api: Api, one: str) -> None:
    async with api.client() as client:
        where, key = f"/sessions/{one}/previews", {"idempotency-key": "k"}
        first = await client.post(where, json={"port": 80, "label": "x"}, headers=key)
        again = await client.post(where, json={"port": 80, "label": "x"}, headers=key)
        assert first.json()["preview"]["preview_id"] == again.json()["preview"]["preview_id"]
        other = await client.post(where, json={"port": 81}, headers=key)
        assert (other.status_code, other.json()["id"]) == (409, "conflict")
        for wrong in (
            {},
            {"port": 0},
            {"port": "80"},
            {"port": 80, "expires_in_seconds": 30 * 86400 + 1},
            {"port": 80, "label": "x" * 65},
            {"port": 80, "x": 1},
        ):
            assert (await client.post(where, json=wrong)).status_code == 400
        listed = (await client.get(where)).json()["previews"]
        assert [each["label"] for each in listed] == ["x"]
        assert "link_url" not in listed[0]
    async with api.client("viewer") as client:
        assert (await client.get(where)).status_code == 200
        assert (await client.post(where, json={"port": 80})).status_code == 403
        assert (await client.delete(f"{where}/{listed[0]['preview_id']}")).status_code == 403


async def test_a_server_without_previews_says_so(api: Api, one: str) -> None:
    object.__setattr__(api.app.state.parts, "previews", None)
    async with api.client() as client:
        for found in (
            await client.get(f"/sessions/{one}/ingress"),
            await client.get(f"/sessions/{one}/previews"),
            await client.post(f"/sessions/{one}/previews", json={"port": 80}),
        ):
            assert (found.status_code, found.json()["id"]) == (501, "previews_off")


# Addresses


def test_where_previews_are_follows_from_the_settings() -> None:
    session = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"
    for url, seen in (
        ("https://previews.example.com", f"https://80-{session}.previews.example.com/"),
        ("https://Previews.example.com:8443/", f"https://80-{session}.previews.example.com:8443/"),
        ("http://localhost:80", f"http://80-{session}.localhost/"),
    ):
        assert Addresses.of(Settings(preview_url=url), 1).url(session, 80) == seen
    assert Addresses.of(Settings(), 8471).path_url(session, 80) == (
        f"http://localhost:8471/s/{session}/80/"
    )
    for wrong in (
        "previews.example.com",
        "ftp://a",
        "http://a/b",
        "http://a@b",
        "http://",
        "http://a?b",
    ):
        with pytest.raises(ValueError, match="preview_url"):
            Settings(preview_url=wrong)


@pytest.mark.parametrize(
    ("listen", "preview", "seen"),
    [
        ("127.0.0.1:8470", None, ("127.0.0.1", 8471)),
        ("0.0.0.0:8470", None, ("127.0.0.1", 8471)),
        ("127.0.0.1:0", None, ("127.0.0.1", 0)),
        ("127.0.0.1:65535", None, ("127.0.0.1", 0)),
        ("127.0.0.1:8470", "[::1]:9", ("::1", 9)),
        ("127.0.0.1:8470", "off", None),
    ],
)
def test_previews_have_a_port_of_their_own(
    listen: str, preview: str | None, seen: tuple[str, int] | None
) -> None:
    assert Settings(listen=listen, preview_listen=preview).preview_address == seen


def test_without_authentication_previews_are_for_this_computer_alone() -> None:
    with pytest.raises(ValueError, match="preview_listen may not be"):
        Settings(authentication="none", preview_listen="0.0.0.0:8471")


def test_a_label_means_one_port_of_one_session_or_nothing() -> None:
    session = "2f1a9c1e-7f0b-4c55-9a8e-0d6a3c1b7e42"
    addresses = Addresses("http", "localhost", 8471)
    for authority in (
        f"08000-{session}.localhost", f"0-{session}.localhost", f"65536-{session}.localhost",
        f"8000-{session}", f"8000-{session}.localhost.evil", f"8000-{session}.x.localhost",
        f"8000-{session}x.localhost", f"a.8000-{session}.localhost", f"8000-{session}-1.localhost",
        "localhost.evil", "[::2]", "192.0.2.1",
    ):  # fmt: skip
        assert addresses.place(authority, "/s") is None, authority
    found = addresses.place(f"8000-{session.upper()}.LOCALHOST.:1", "/x")
    assert found is not None
    assert (found.session, found.port, found.target) == (session, 8000, "/x")
