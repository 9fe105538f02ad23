"""The console's pages of users and policies (ACL 2.0)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpy.admin import AdminClient, Policy
from rocketpy.protocol.bodies import UserInfo
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import UserRequestHeader
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.console.browser import Browser, browsing
from tests.integration.users_place import BOSS, Servers, servers_at


class Opened(NamedTuple):
    """What a test of these pages uses."""

    servers: Servers
    admin: AdminClient
    browser: Browser


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console's account is that of the environment."""
    monkeypatch.setenv("ROCKETPY_ACCESS_KEY", BOSS[0])
    monkeypatch.setenv("ROCKETPY_SECRET_KEY", BOSS[1])


@asynccontextmanager
async def users_shown(path: Path, *, has_slave: bool = False) -> AsyncIterator[Opened]:
    """Servers with the users boss and app, and a browser that is logged in and may change them."""
    async with (
        servers_at(path, has_slave=has_slave) as servers,
        servers.admin() as admin,
        browsing(str(servers.names.address), allow_changes=True) as browser,
    ):
        await browser.log_in()
        await admin.accounts.put_user("app", "app-secret")
        yield Opened(servers, admin, browser)


async def test_users_and_policies_are_shown_and_changed(tmp_path: Path) -> None:
    """An operator could not see who may do what, or a misclick would lock an application out."""
    async with users_shown(tmp_path) as (servers, admin, browser):
        listed = await browser.text("/users")
        assert ">app</a></td><td>Normal</td><td>enabled</td>" in listed
        assert ">boss</a></td><td>Super</td>" in listed
        assert "secret" not in listed
        assert "so may do nothing" in await browser.text("/user", name="app")
        put = {
            "name": "app", "to": "put-policy", "resource": "Topic:Or*", "actions": "Pub, Sub",
            "decision": "Deny", "from": "10.0.0.0/8", "kind": "Custom",
        }  # fmt: skip
        preview = await browser.text("/user-change", **put)
        assert "Deny Pub, Sub" in preview
        name = servers.broker.config.name
        assert (await admin.accounts.policies())[name] == ()
        done = await browser.submit("/user-change", preview, **put)
        assert "The change was made at every broker." in done.text
        policy = Policy("app", "Topic:Or*", ("Pub", "Sub"), allows=False, source_ips=("10.0.0.0/8",))
        assert (await admin.accounts.policies())[name] == (policy,)
        wrong = await browser.submit("/user-change", preview, **put | {"actions": "Publish"})
        assert (wrong.status_code, "&#39;Publish&#39; is unknown" in wrong.text) == (502, True)
        unclear = await browser.submit("/user-change", preview, **put | {"decision": "deny"})
        assert (unclear.status_code, "choose Allow or Deny" in unclear.text) == (400, True)
        assert (await admin.accounts.policies())[name] == (policy,)
        remove = {"name": "app", "to": "delete-policy", "resource": "Topic:Or*", "kind": "Custom"}
        await browser.submit("/user-change", await browser.text("/user-change", **remove), **remove)
        assert (await admin.accounts.policies())[name] == ()
        for change, shown in (("disable", "<strong>disabled</strong>"), ("enable", "enabled ·")):
            fields = {"name": "app", "to": change}
            changed = await browser.submit(
                "/user-change", await browser.text("/user-change", **fields), **fields
            )
            assert shown in changed.text
        gone = {"name": "app", "to": "delete"}
        after = await browser.submit("/user-change", await browser.text("/user-change", **gone), **gone)
        assert "are deleted at every broker" in after.text
        assert ">app<" not in after.text
        for bad, status in (({"name": "nobody"}, 404), ({"to": "promote", "name": "boss"}, 400)):
            assert (await browser.submit("/user-change", preview, **gone | bad)).status_code == status


async def test_a_user_who_differs_between_brokers_is_shown_so(tmp_path: Path) -> None:
    """An operator would read that a user is disabled who may sign in at another broker."""
    async with users_shown(tmp_path, has_slave=True) as (servers, _, browser):
        assert servers.slave is not None
        name, fields = servers.broker.config.name, UserRequestHeader(username="app").ext_fields()
        disabled = UserInfo(user_status="disable").encode()
        for server, shown in (
            (servers.broker, f"<strong>disabled</strong> at {name}<br>enabled at {name}/1 · "),
            (servers.slave, "<strong>disabled</strong> · "),
        ):
            at = server.address
            answer = await servers.ask(BOSS, RequestCode.AUTH_UPDATE_USER, fields, disabled, at=at)
            assert answer.code == ResponseCode.SUCCESS
            page = await browser.text("/user", name="app")
            assert shown in page
            assert ("Disable…" in page) == (server is servers.broker)
            assert "Enable…" in page
        change = {"name": "app", "to": "enable"}
        await browser.submit("/user-change", await browser.text("/user-change", **change), **change)
        await servers.ask(BOSS, RequestCode.AUTH_DELETE_USER, fields, at=servers.broker.address)
        page = await browser.text("/user", name="app")
        assert f"enabled at {name}/1<br>no such user at {name} · " in page
        assert f"Normal, enabled at {name}/1</dd>" in await browser.text("/user-change", **change)
        await servers.broker.close()
        page = await browser.text("/user", name="app")
        assert f"enabled at {name}/1" in page
        assert f"broker {name} has no master now" in page
        assert ">app</a>" in await browser.text("/users")


async def test_a_policy_that_is_not_there_is_not_deleted(tmp_path: Path) -> None:
    """An operator would read that a right is gone, which is still there as one of the other kind."""
    async with users_shown(tmp_path) as (servers, admin, browser):
        await admin.accounts.put_policy(Policy("app", "Topic:A", ("Pub",), allows=True))
        there = {"name": "app", "to": "delete-policy", "resource": "Topic:A", "kind": "Custom"}
        page = await browser.text("/user-change", **there)
        for wrong, hint in (
            ({"kind": "Default"}, "there is one of the kind Custom"),
            ({"resource": "Topic:B"}, "rocketpy policy list shows the policies"),
        ):
            for answer in (
                await browser.get("/user-change", params=there | wrong),
                await browser.submit("/user-change", page, **there | wrong),
            ):
                assert (answer.status_code, hint in answer.text) == (404, True)
        assert len((await admin.accounts.policies())[servers.broker.config.name]) == 1


async def test_a_read_only_console_changes_no_user(tmp_path: Path) -> None:
    """Whoever may look could give themselves rights."""
    async with servers_at(tmp_path) as servers, browsing(str(servers.names.address)) as reader:
        await reader.log_in()
        page = await reader.text("/user-change", name="boss", to="disable")
        assert "--allow-changes" in page
        assert 'name="csrf"' not in page


async def test_brokers_without_users_are_explained(cluster: EmbeddedCluster) -> None:
    """The page would look as if nobody had access."""
    async with browsing(cluster.namesrv_address) as reader:
        await reader.log_in()
        assert "users and policies are off at this broker" in await reader.text("/users")
