"""Checks of requests before a page handles them, for every route of the console."""

from __future__ import annotations

import pytest
from starlette.routing import Mount, Route

from rocketpy.config import ClientConfig
from rocketpy.errors import ConfigInvalid
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_cli.console.app import Console
from rocketpy_cli.console.guard import FORM_BYTES_MAX
from rocketpy_cli.console.settings import ConsoleSettings
from tests.integration.console.browser import TOKEN, Browser, browsing

SAFE = {"GET", "HEAD"}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens there
CLIENT = ClientConfig(namesrv="127.0.0.1:9876")


def every_route(console: Console) -> list[tuple[str, str]]:
    """Method and path of all routes of the application."""
    found = []
    for route in console.asgi.app.routes:
        if isinstance(route, Mount):
            assert route.path == "/static"  # routes of any other mount would have to be tested
            found += [("GET", "/static/console.css"), ("GET", "/static/console.js")]
            continue
        assert isinstance(route, Route)
        assert "{" not in route.path
        found += [(method, route.path) for method in sorted(route.methods or ())]
    changes = {"/send", "/reset", "/resend", "/resend-all", "/writes", "/user-change"}
    assert {path for method, path in found if method == "POST"} == changes
    assert {"/", "/broker", "/producers", "/trace", *changes} <= {
        path for method, path in found if method == "GET"
    }
    return found


async def test_nobody_gets_in_without_the_token(cluster: EmbeddedCluster) -> None:
    """Any user of the machine, or any web page, could read messages."""
    async with browsing(cluster.namesrv_address, allow_changes=True) as browser:
        for method, path in every_route(browser.console):
            for token in ({}, {"token": TOKEN + "x"}, {"token": ""}):
                response = await browser.request(method, path, params=token)
                assert response.status_code == 401, (method, path)
                assert "set-cookie" not in response.headers
        assert not browser.cookies


async def test_no_change_without_the_csrf_token(browser: Browser) -> None:
    """A web page could post a form to the console with the user's cookie."""
    for method, path in every_route(browser.console):
        if method in SAFE:
            continue
        for form in ({}, {"csrf": ""}, {"csrf": "x"}, {"csrf": TOKEN}):
            response = await browser.request(method, path, data={"topic": "T", "body": "b", **form})
            assert response.status_code == 403, (method, path)
        token = browser.console.asgi.csrf_token
        other = await browser.request(method, path, json={"csrf": token, "topic": "T", "body": "b"})
        assert other.status_code == 403


async def test_no_change_at_a_read_only_console(reader: Browser) -> None:
    """A read-only console would change the cluster."""
    token = reader.console.asgi.csrf_token
    for method, path in every_route(reader.console):
        if method not in SAFE:
            response = await reader.request(method, path, data={"csrf": token, "topic": "T", "body": "b"})
            assert response.status_code == 403, (method, path)
    assert 'method="post"' not in await reader.text("/send", topic="T")
    for to in ("hide", "restore"):
        assert 'method="post"' not in await reader.text("/writes", name="broker-a", to=to)
    assert 'method="post"' not in await reader.text("/resend-all", group="readers")


async def test_another_host_is_refused(browser: Browser) -> None:
    """A page of a name that was pointed at 127.0.0.1 could read the console (DNS rebinding)."""
    for method, path in every_route(browser.console):
        for host in ("evil.example", "evil.example:8088", "127.0.0.1.evil.example", ""):
            response = await browser.request(method, path, headers={"host": host})
            assert response.status_code == 421, (method, path, host)
    for host in ("127.0.0.1", "localhost:8088", "[::1]:8088", "LOCALHOST"):
        assert browser.console.asgi._settings.is_own_host(host)


async def test_every_response_has_the_headers(browser: Browser) -> None:
    """Another site could frame a page, or a message run as a script."""
    for method, path in [*every_route(browser.console), ("GET", "/missing"), ("TRACE", "/")]:
        headers = (await browser.request(method, path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


async def test_the_cookie_is_out_of_reach(cluster: EmbeddedCluster) -> None:
    """A script could read the session, or another site use it; the token would stay in the address bar."""
    async with browsing(cluster.namesrv_address) as browser:
        response = await browser.get("/topics", params={"token": TOKEN}, follow_redirects=False)
        assert response.status_code == 303
        assert response.headers["location"] == "/topics"
        cookie = response.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert cookie.startswith(f"rocketpy_console_{browser.base_url.port}=")  # cookies know no ports


async def test_a_large_form_is_refused(browser: Browser) -> None:
    """One request could fill the memory."""
    token = browser.console.asgi.csrf_token
    response = await browser.post("/send", data={"csrf": token, "body": "x" * FORM_BYTES_MAX})
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"host": "192.0.2.1"}, "--allow-remote"),
        ({"host": EVERYWHERE}, "--allow-remote"),
        ({"host": EVERYWHERE, "allow_remote": True}, "--host-name"),
        ({"host": "::"}, "--allow-remote"),
        ({"host": "localhost"}, "IP address"),
        ({"token": "short"}, "16"),
    ],
)
def test_unsafe_settings_are_refused(wrong: dict[str, object], says: str) -> None:
    """The console could be open to a network by mistake."""
    given: dict[str, object] = {"token": TOKEN, **wrong}
    with pytest.raises(ConfigInvalid, match=says):
        ConsoleSettings(client=CLIENT, cluster="c", **given)  # type: ignore[arg-type]


def test_a_named_host_may_be_remote() -> None:
    """Behind a proxy, the console must accept the proxy's name."""
    settings = ConsoleSettings(
        client=CLIENT,
        cluster="c",
        token=TOKEN,
        host=EVERYWHERE,
        allow_remote=True,
        host_names=("mq.example",),
    )
    assert settings.is_own_host("mq.example:443")
    assert not settings.is_own_host("other.example")
    assert TOKEN not in repr(settings)
