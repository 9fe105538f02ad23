"""Consumers that pop from one topic, each with its own connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker import Broker
from tests.integration.broker.test_deferred import send_header
from tests.integration.broker.test_pop import pop_response, popped
from tests.integration.raw_client import RawClient
from tests.waiting import until

WAIT_MS = 60_000


class Workers:
    """Consumers of group g that pop from topic T, each with its own connection."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        self.broker, self._stack = broker, stack

    async def connect(self) -> RawClient:
        """A new connection."""
        return await self._stack.enter_async_context(await RawClient.open(self.broker.address))

    async def wait(self, *, held: int = 1, **fields: Any) -> tuple[RawClient, asyncio.Task[Command]]:
        """Pop with a new connection, and wait until `held` pops are held."""
        client = await self.connect()
        task = asyncio.create_task(pop_response(client, **{"poll_time": WAIT_MS, "count": 1} | fields))
        await until(lambda: len(self.holds) >= held)
        return client, task

    @property
    def holds(self) -> Any:
        """The table of held pops."""
        polling = self.broker.delivery._polling
        assert polling is not None
        return polling.holds


def text_of(properties: dict[str, str]) -> str:
    """Properties as the text of a request."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


async def send(client: RawClient, body: str, queue_id: int = 0, **properties: str) -> None:
    """Send one message."""
    header = send_header(text_of(properties), queue_id=queue_id)
    response = await client.call(RequestCode.SEND_MESSAGE_V2, header, body.encode())
    assert response.code == ResponseCode.SUCCESS, response.remark


async def bodies(*tasks: asyncio.Task[Command]) -> list[list[str]]:
    """The bodies in the response to each pop."""
    return [[message.body for message in popped(await task, "T")] for task in tasks]
