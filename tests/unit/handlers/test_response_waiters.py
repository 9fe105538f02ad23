"""Responses that wait for a flush, a slave or a commit: order, timeouts, and the end of a broker."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel, serve
from rocketpy_broker.handlers.base import handles
from rocketpy_broker.handlers.send.response import ParkedResponse, SendResponses
from rocketpy_broker.handlers.send.response_waiters import (
    PC_BUSY,
    CommitWaiters,
    FlushWaiters,
    ReplicaWaiters,
)
from rocketpy_broker.store import MessageInner, MessageStore
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.unit.handlers.handler_server import HandlerClient, HandlerServer, running
from tests.unit.store.helpers import small_config
from tests.waiting import until

RESPONSES = SendResponses(store_host=bytes(8), region_id="r", trace_on=True)
LONG_MS = 600_000


class _Sends:
    """Keeps the sends of a connection, for tests that park them."""

    def __init__(self) -> None:
        self.parked: list[ParkedResponse] = []

    @handles(RequestCode.SEND_MESSAGE_V2)
    def send(self, channel: Channel, request: Command) -> None:
        self.parked.append(ParkedResponse(channel, request, 0, len(self.parked), (0,), waits=True))

    async def take(self, client: HandlerClient) -> tuple[list[ParkedResponse], asyncio.Future[Command]]:
        """Return one send, and its future response."""
        response = asyncio.ensure_future(client.call(RequestCode.SEND_MESSAGE_V2))
        count = len(self.parked)
        await until(lambda: len(self.parked) > count)
        return self.parked[count:], response


class _Slaves:
    acked = -1

    def is_slave_ok(self, offset: int) -> bool:
        return True


class _Log:
    """The end of a log, as a test sets it."""

    end = 0
    pushes = 0

    def push(self) -> None:
        self.pushes += 1

    def waiters(self, timeout_ms: int = LONG_MS) -> CommitWaiters:
        """Waiters for commits of this log."""
        tasks = Tasks("the test")
        return CommitWaiters(
            RESPONSES, tasks, appended=lambda: self.end, push=self.push, timeout_ms=timeout_ms
        )


async def test_a_commit_releases_the_sends_before_it() -> None:
    """A producer would get SEND_OK for a message that no majority has."""
    sends, log, stored = _Sends(), _Log(), list[StoreError | None]()
    waiters = log.waiters()
    async with running(HandlerServer(sends)) as (client,):
        first, first_response = await sends.take(client)
        second, second_response = await sends.take(client)
        for parked, log.end in ((first, 100), (second, 200)):
            waiters.park_until_commit(parked, [stored.append])
        assert log.pushes == 2
        waiters.committed(199)
        assert (await first_response).code == ResponseCode.SUCCESS
        assert (stored, second_response.done()) == ([None], False)
        waiters.committed(200)
        assert (await second_response).code == ResponseCode.SUCCESS
        await waiters.drain()
        assert stored == [None, None]


async def test_sends_without_a_majority_timeout() -> None:
    """A producer would wait for a group that has lost its majority until its own timeout."""
    sends, log, stored = _Sends(), _Log(), list[StoreError | None]()
    waiters = log.waiters(timeout_ms=1)
    async with running(HandlerServer(sends)) as (client,):
        for _ in range(2):  # the timer starts again
            parked, response = await sends.take(client)
            log.end += 100
            waiters.park_until_commit(parked, [stored.append])
            assert (await response).remark == PC_BUSY
            await waiters.drain()
        assert all(isinstance(error, StoreError) for error in stored)
        waiters.committed(log.end)
        assert len(stored) == 2


@pytest.mark.parametrize("end", ["a commit", "a timeout", "a lost role"])
async def test_a_drain_ends_with_the_last_response(end: str) -> None:
    """A broker would never stop: its drain waits for each kind of response."""
    sends, log = _Sends(), _Log()
    waiters = log.waiters(timeout_ms=20 if end == "a timeout" else LONG_MS)
    async with running(HandlerServer(sends)) as (client,):
        parked, response = await sends.take(client)
        waiters.park_until_commit(parked, ())
        draining = asyncio.create_task(waiters.drain())
        await asyncio.sleep(0)  # now it waits
        if end == "a commit":
            waiters.committed(0)
        elif end == "a lost role":
            waiters.fail()
        await response
        await until(draining.done)


async def test_a_lost_role_fails_all_that_wait() -> None:
    """Sends would wait for commits of a peer that no longer leads."""
    sends, log = _Sends(), _Log()
    waiters = log.waiters()
    async with running(HandlerServer(sends)) as (client,):
        parked, response = await sends.take(client)
        waiters.park_until_commit(parked, ())
        waiters.fail()
        assert (await response).remark == "UNKNOWN_ERROR"
        parked, response = await sends.take(client)
        waiters.park_until_commit(parked, ())  # after it leads again
        waiters.committed(0)
        assert (await response).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("condition", ["a slave", "a majority"])
async def test_sends_are_answered_in_the_turn_in_which_they_are_safe(condition: str) -> None:
    """A single producer would wait for what the broker does afterwards: it dispatches, and ends its turn."""
    sends, slaves, log, at_hand = _Sends(), _Slaves(), _Log(), list[bytes]()
    server = HandlerServer(sends)
    listener = await serve("tcp://127.0.0.1:0", server)
    with socket.create_connection((listener.address.host, listener.address.port)) as producer:

        def receive(*_: object) -> None:
            producer.setblocking(False)
            at_hand.append(producer.recv(4096))

        for opaque in range(2):
            producer.sendall(encode_command(Command(RequestCode.SEND_MESSAGE_V2, opaque)))
        await until(lambda: len(sends.parked) == 2)
        if condition == "a slave":
            replicas = ReplicaWaiters(
                slaves, RESPONSES, Tasks("the test"), timeout_ms=LONG_MS, has_unflushed=lambda: False,
                poke=lambda: None, on_visible=receive,
            )  # fmt: skip
            for parked in sends.parked:
                replicas.park([parked], 100)
            slaves.acked = 100
            replicas.acked()
            replicas.fail()
        else:
            commits = log.waiters()
            for parked in sends.parked:
                commits.park_until_commit([parked], [receive] if parked is sends.parked[0] else [])
            commits.committed(100)
            commits.fail()
        frames = FrameDecoder().feed(at_hand[0])
        assert [decode_command(frame).opaque for frame in frames] == [0, 1]
    await listener.close()
    await server.tasks.close()


async def test_a_slave_that_is_too_slow_times_out() -> None:
    """SYNC_MASTER: a producer would wait forever, and consumers never read the message."""
    sends, slaves, visible, stored = _Sends(), _Slaves(), list[int](), list[StoreError | None]()
    waiters = ReplicaWaiters(
        slaves,
        RESPONSES,
        Tasks("the test"),
        timeout_ms=20,
        has_unflushed=lambda: False,
        poke=lambda: None,
        on_visible=lambda: visible.append(waiters.limit()),
    )
    async with running(HandlerServer(sends)) as (client,):
        parked, response = await sends.take(client)
        waiters.park(parked, 100, [stored.append])
        assert (waiters.limit(), stored) == (0, [])
        assert (await response).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert stored == [None]  # it has no response that says so
        await waiters.drain()
        assert len(visible) == 1
        parked, response = await sends.take(client)
        slaves.acked = 200
        waiters.park(parked, 200)
        assert (await response).code == ResponseCode.SUCCESS
        waiters.fail()


async def test_a_flush_releases_the_sends_before_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SYNC_FLUSH: a producer would get SEND_OK for a message that power loss can remove."""
    sends, stored = _Sends(), list[StoreError | None]()
    store = MessageStore(small_config(tmp_path))
    driver = StoreDriver(store)
    await driver.start()
    waiters = FlushWaiters(driver, RESPONSES, Tasks("the test"), timeout_ms=LONG_MS)
    async with running(HandlerServer(sends)) as (client,):
        responses = []
        for _ in range(3):
            parked, response = await sends.take(client)
            store.put_message(MessageInner("T", 0, b"x", born_timestamp=1))
            waiters.park(parked, store.max_physical_offset, [stored.append])
            assert waiters.are_waiting
            responses.append(response)
        assert [(await response).code for response in responses] == [0, 0, 0]
        assert store.flushed_offset == store.max_physical_offset
        assert stored == [None, None, None]
        await waiters.close()
        assert not waiters.are_waiting
        await driver.close()
        parked, response = await sends.take(client)
        others, other_response = await sends.take(client)
        waiters.park([*parked, *others], 1 << 40, [stored.append])  # the store is closed: the flush fails
        assert (await response).code == (await other_response).code == ResponseCode.SYSTEM_ERROR
        assert "2 sends fail" in caplog.text
        assert isinstance(stored[3], StoreError)
