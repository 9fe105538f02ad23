"""The console's pages of users and policies (ACL 2.0)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.admin import Policy
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.console.browser import browsing
from tests.integration.users_place import BOSS, servers_at


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console's account is that of the environment."""
    monkeypatch.setenv("ROCKETPY_ACCESS_KEY", BOSS[0])
    monkeypatch.setenv("ROCKETPY_SECRET_KEY", BOSS[1])


async def test_users_and_policies_are_shown_and_changed(tmp_path: Path) -> None:
    """An operator could not see who may do what, or a misclick would lock an application out."""
    async with (
        servers_at(tmp_path) as servers,
        servers.admin() as admin,
        browsing(str(servers.names.address), allow_changes=True) as browser,
    ):
        await browser.log_in()
        await admin.accounts.put_user("app", "app-secret")
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
