"""Handlers that are coroutine functions: the responses that their clients get."""

import asyncio

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import handles
from tests.unit.handlers.handler_server import HandlerServer, running


class _Handler:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    @handles(RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO)
    def at_once(self, channel: Channel, request: Command) -> Command:
        return request.reply(remark=str(request.code))

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG)
    async def slow(self, channel: Channel, request: Command) -> Command:
        await self.may_end.wait()
        return request.reply(remark="slow")

    @handles(RequestCode.GET_MAX_OFFSET)
    async def fails(self, channel: Channel, request: Command) -> Command:
        raise StoreError("the disk is gone")

    @handles(RequestCode.GET_MIN_OFFSET)
    async def has_a_bug(self, channel: Channel, request: Command) -> Command:
        raise KeyError("a secret")


async def test_a_slow_handler_delays_no_other_request() -> None:
    """Without a task, one request that waits for the disk would stop its whole connection."""
    handler = _Handler()
    async with running(HandlerServer(handler)) as (client,):
        slow = asyncio.ensure_future(client.call(RequestCode.GET_ALL_TOPIC_CONFIG))
        for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO):
            assert (await client.call(code)).remark == str(int(code))
        assert not slow.done()
        handler.may_end.set()
        assert (await slow).remark == "slow"


async def test_a_failed_task_responds_and_shows_no_details_of_bugs() -> None:
    """A client would wait until its timeout, or get the text of an internal exception."""
    server = HandlerServer(_Handler())
    async with running(server) as (client,):
        response = await client.call(RequestCode.GET_MAX_OFFSET)
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "the disk is gone")
        response = await client.call(RequestCode.GET_MIN_OFFSET)
        assert (response.code, response.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "internal error; see the server's log",
        )
        assert server.tasks.failure is None
