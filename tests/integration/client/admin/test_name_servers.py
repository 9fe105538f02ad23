"""admin.name_servers: key-value settings, ordered topics and settings, at every name server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpy import AdminClient
from rocketpy.errors import BrokerError, BrokersFailed
from rocketpy_broker import NameServer, load_namesrv_config


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[list[NameServer]]:
    """Name servers whose settings may change, except those of the last."""
    started = []
    for number in range(3):
        path = tmp_path / f"{number}.conf"
        allowed = "true" if number < 2 else "false"
        path.write_text(
            f"listenPort=0\nkvConfigPath={tmp_path}/{number}.json\nremoteConfigUpdateEnable={allowed}\n"
        )
        started.append(NameServer(load_namesrv_config(path)))
        await started[-1].start()
    yield started
    for server in started:
        await server.close()


def of(*servers: NameServer) -> str:
    return ";".join(str(server.address) for server in servers)


async def test_settings_are_put_at_every_name_server(three: list[NameServer]) -> None:
    """Brokers and clients would get another value from each name server."""
    async with AdminClient(of(*three)) as admin:
        names = admin.name_servers
        assert await names.get("SPACE", "key") is None
        assert await names.namespace("SPACE") == {}
        await names.put("SPACE", "key", "a value = 1;2")
        for server in three:
            async with AdminClient(of(server)) as one:
                assert await one.name_servers.get("SPACE", "key") == "a value = 1;2"
                assert await one.name_servers.namespace("SPACE") == {"key": "a value = 1;2"}
        await names.delete("SPACE", "key")
        await names.delete("SPACE", "key")
        assert [server.kv.get("SPACE", "key") for server in three] == [None] * 3


async def test_a_name_server_that_is_offline_is_named(three: list[NameServer]) -> None:
    """An operator would believe that all name servers have the value."""
    async with AdminClient(of(*three)) as admin:
        away = f"name server {three[1].address}"
        await three[1].close()
        with pytest.raises(BrokersFailed) as failure:
            await admin.name_servers.put("SPACE", "key", "value")
        assert set(failure.value.errors) == {away}
        assert [server.kv.get("SPACE", "key") for server in (three[0], three[2])] == ["value"] * 2
        assert await admin.name_servers.get("SPACE", "key") == "value"


async def test_settings_are_read_and_changed(three: list[NameServer]) -> None:
    """An operator would not see a setting that differs, or a change that was refused."""
    async with AdminClient(of(*three[:2])) as admin:
        before = await admin.name_servers.config()
        assert set(before) == {str(server.address) for server in three[:2]}
        assert {one["orderMessageEnable"] for one in before.values()} == {"false"}
        await admin.name_servers.set_config({"orderMessageEnable": "true"})
        after = await admin.name_servers.config()
        assert {one["orderMessageEnable"] for one in after.values()} == {"true"}
    async with AdminClient(of(*three)) as admin:
        with pytest.raises(BrokersFailed, match="remoteConfigUpdateEnable") as failure:
            await admin.name_servers.set_config({"orderMessageEnable": "false"})
        assert set(failure.value.errors) == {f"name server {three[2].address}"}
    async with AdminClient(of(three[2])) as admin:
        with pytest.raises(BrokerError, match="remoteConfigUpdateEnable"):
            await admin.name_servers.set_config({"orderMessageEnable": "false"})
