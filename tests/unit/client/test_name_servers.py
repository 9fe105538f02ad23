"""Requests to name servers."""

from __future__ import annotations

from typing import cast

import pytest

from rocketpy.client.connections import ConnectionPool, PeerConnection
from rocketpy.client.name_servers import NameServers
from rocketpy.errors import BrokerError, ConnectionLost
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command


class _Pool:
    """Connections to name servers. The first one rejects a request while another request to it fails."""

    def __init__(self) -> None:
        self.name_servers: set[str] = set()
        self.servers = NameServers(("first:1", "second:2"), cast(ConnectionPool, self), 3000)
        self.requests = 0

    def get(self, address: str) -> PeerConnection:
        return cast(PeerConnection, _Server(self, address))


class _Server:
    def __init__(self, pool: _Pool, address: str) -> None:
        self.pool = pool
        self.address = address

    async def request(self, command: Command, timeout_ms: float) -> Command:
        self.pool.requests += 1
        if self.pool.requests == 2:
            raise ConnectionLost("the connection has ended")
        if self.pool.requests == 1:
            with pytest.raises(BrokerError, match="name server second:2"):
                await self.pool.servers.brokers()
        return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"rejected by {self.address}")


async def test_an_error_names_the_server_that_responded() -> None:
    """After a concurrent failure, the current server is another one, and an operator would look there."""
    pool = _Pool()
    with pytest.raises(BrokerError, match=r"name server first:1 .*rejected by first:1"):
        await pool.servers.brokers()
