"""RocketMQ's second port, two below the first (its "VIP channel"), where alone its slaves ask for topics.

Opened when the first slave of RocketMQ's is there, and not before: nobody else needs it.
Source: BrokerController fastRemotingServer, BrokerOuterAPI getAllTopicConfig.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from rocketpy.transport import Address, Server, serve
from rocketpy_broker.config import ListenConfig
from rocketpy_broker.endpoint import BrokerEndpoint

__all__ = ["FastPort"]

log = logging.getLogger("rocketpy.broker")

_BELOW = 2


class FastPort:
    """Serves what the broker serves, under the same rules. address: where the broker listens."""

    def __init__(self, listen: ListenConfig, address: Address, endpoint: BrokerEndpoint) -> None:
        self._listen = listen
        self._address = replace(address, port=address.port - _BELOW)
        self._endpoint = endpoint
        self._opening: asyncio.Task[Server | None] | None = None

    def open(self) -> None:
        """Listen there soon. Where that is not possible a warning says so."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> Server | None:
        try:
            server = await serve(self._address, self._endpoint, self._listen.options)
        except OSError as error:
            log.warning(
                "%s cannot be opened, where RocketMQ's slaves ask for topics: %s", self._address, error
            )
            return None
        log.info("a slave of RocketMQ's is here: %s is open, where it asks for topics", server.address)
        return server

    async def close(self) -> None:
        """Listen no more."""
        if self._opening is not None:
            server = await self._opening
            if server is not None:
                await server.close()
