"""Consumers that share messages (POP), with accounts and with users: what their rights allow, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    ConsumeFrom,
    Later,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    Sharing,
    SimpleConsumer,
)
from rocketpy.admin import Policy
from rocketpy.config import Credentials
from rocketpy.consumer.pop.api import Handle
from rocketpy.errors import BrokerError
from rocketpy.protocol.bodies import BatchAck, BatchAckMessageRequestBody, QueryAssignmentRequestBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.message.receipt import Receipt, TopicKind
from rocketpy.protocol.remoting.acl import Signer
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from tests.integration import access_place, users_place
from tests.integration.pop_cases import FIRST, MINUTE, SECOND, receive
from tests.integration.raw_client import RawClient
from tests.mqproducer.place import eventually
from tests.protocol_tables import REQUEST_HEADERS
from tests.waiting import LIMIT_S, until


def keys(name: str) -> tuple[str, str]:
    """The access key and the secret key of an account, or the name and password of a user."""
    return name, f"{name}-secret"


@dataclass
class Place:
    """Servers, and their operator."""

    names: Address
    broker: Address
    operator: ClientConfig
    admin: AdminClient
    has_users: bool

    def client(self, name: str) -> ClientConfig:
        """The settings of a client with keys."""
        access_key, secret_key = keys(name)
        credentials = Credentials(access_key=access_key, secret_key=secret_key)
        return ClientConfig(namesrv=str(self.names), credentials=credentials)

    async def grant(self, name: str, topic: str, group: str) -> None:
        """Add somebody who may read a topic in a group, and wait until the name server knows."""
        accounts = self.admin.accounts
        if self.has_users:
            await accounts.put_user(*keys(name))
            for resource in (f"Topic:{topic}", f"Group:{group}"):
                await accounts.put_policy(Policy(name, resource, ("Sub",), allows=True))
        else:
            await accounts.put(
                *keys(name),
                default_topic_perm="DENY",
                default_group_perm="DENY",
                topic_perms={topic: "SUB"},
                group_perms={group: "SUB"},
            )

        async def known() -> bool | None:
            header = GetRouteInfoRequestHeader(topic=topic)
            response = await self.ask(
                name, RequestCode.GET_ROUTEINTO_BY_TOPIC, header.ext_fields(), at=self.names
            )
            return response.code == ResponseCode.SUCCESS or None

        assert await eventually(known)

    async def ask(
        self, by: str, code: int, fields: dict[str, str], body: bytes = b"", *, at: Address | None = None
    ) -> Command:
        """The response to one request."""
        request = Command.request(code, None, body)
        request.ext = Signer(*keys(by)).sign(fields, body, code=code)
        async with await RawClient.open(at or self.broker) as client:
            return await client.call_frame(encode_command(request))


@pytest.fixture(params=["accounts", "users"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    """Servers with ACL 1.0, or with ACL 2.0, with topic T, and the worker of group g."""
    if request.param == "accounts":
        async with access_place.Servers(tmp_path, monkeypatch) as servers:
            operator = ClientConfig(namesrv=str(servers.names), credentials=access_place.keys("operator"))
            async with AdminClient(client=operator) as admin:
                yield await ready(Place(servers.names, servers.address, operator, admin, has_users=False))
    else:
        async with users_place.servers_at(tmp_path) as others:
            operator = others.client(*users_place.BOSS)
            async with AdminClient(client=operator) as admin:
                names, broker = others.names.address, others.broker.address
                yield await ready(Place(names, broker, operator, admin, has_users=True))


async def ready(place: Place) -> Place:
    for topic in ("T", "Secret"):
        await place.admin.create_topic(topic, 1)
    await place.grant("worker-1", "T", "g")
    return place


async def send(place: Place, topic: str, *bodies: bytes) -> None:
    """Send messages as the operator."""
    async with Producer("p", client=place.operator) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


async def test_a_worker_needs_no_right_but_to_read(place: Place) -> None:
    """A worker with the rights of a consumer could not release a job, or give one up."""
    await send(place, "T", b"a", b"b", b"c")
    async with SimpleConsumer("g", config=FIRST, client=place.client("worker-1")) as consumer:
        consumer.subscribe("T")
        done, kept, released = await receive(consumer, 3)
        await consumer.ack(done)
        await consumer.extend(kept, MINUTE)
        await consumer.release(released)
        (again,) = await receive(consumer, 1)
        assert (again.body, again.delivery_attempt) == (released.body, 2)
        await consumer.ack_many([kept, again])
        assert consumer.health().problems == ()


async def test_a_worker_gives_up_a_message_with_the_right_to_read_only(place: Place) -> None:
    """A message that no worker can handle would come again for ever."""
    await send(place, "T", b"a")
    config = dataclasses.replace(FIRST, max_reconsume_times=0)
    async with SimpleConsumer("g", config=config, client=place.client("worker-1")) as consumer:
        consumer.subscribe("T")
        (message,) = await receive(consumer, 1)
        await consumer.release(message)

        async def given_up() -> bool | None:
            assert await consumer.receive(1, MINUTE, timedelta(0)) == []
            return bool(await place.admin.dead_letters.count("g")) or None

        assert await eventually(given_up)


def push_consumer(
    place: Place, group: str, handler: Callable[[MessageExt], Awaitable[Later | None]]
) -> PushConsumer:
    config = PushConfig(sharing=Sharing.MESSAGES, consume_from=ConsumeFrom.FIRST_OFFSET)
    return PushConsumer(group, handler=handler, config=config, client=place.client("worker-1"))


async def nothing(_: MessageExt) -> None:
    """Handle a message."""


async def test_a_push_consumer_needs_no_right_but_to_read(place: Place) -> None:
    """A message whose handler failed would not come again."""
    await send(place, "T", b"a")
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def fail_once(message: MessageExt) -> Later | None:
        attempts.put_nowait(message.delivery_attempt)
        return Later(delay_level=1) if message.delivery_attempt == 1 else None

    consumer = push_consumer(place, "g", fail_once)
    consumer.subscribe("T")
    async with consumer:
        assert [await asyncio.wait_for(attempts.get(), LIMIT_S) for _ in range(2)] == [1, 2]
        await until(lambda: consumer.health().problems == ())


async def test_a_group_without_a_right_ends_the_start(place: Place) -> None:
    """The error would be that the broker is an old one, or there would be none."""
    simple = SimpleConsumer("theirs", config=FIRST, client=place.client("worker-1"))
    push = push_consumer(place, "theirs", nothing)
    for consumer in (simple, push):
        consumer.subscribe("T")
        with pytest.raises(BrokerError, match=r"(?i)permission .*group:theirs"):
            await consumer.start()


async def test_a_topic_without_a_right_is_named(place: Place) -> None:
    """An operator would look for a missing topic, or for a worker that is slow."""
    named = r"(?i)permission .*topic:Secret"
    async with SimpleConsumer("g", config=FIRST, client=place.client("worker-1")) as simple:
        simple.subscribe("Secret")
        with pytest.raises(BrokerError, match=named):
            await simple.receive(1, MINUTE, timedelta(0))
    push = push_consumer(place, "g", nothing)
    push.subscribe("Secret")
    async with push:
        (problem,) = push.health().problems
        assert re.search(named, problem)


async def test_the_right_to_a_group_can_be_given_later(place: Place) -> None:
    """Workers would have to be started again, or would wait for the next heartbeat."""
    await send(place, "T", b"a")
    consumer = SimpleConsumer("late", config=FIRST, client=place.client("worker-2"))
    consumer.subscribe("T")
    await place.grant("worker-2", "T", "g")
    await consumer.start(wait=False)
    try:
        with pytest.raises(BrokerError, match=r"(?i)permission .*group:late"):
            await consumer.receive(1, MINUTE, timedelta(0))
        await place.grant("worker-2", "T", "late")

        async def received() -> list[MessageExt] | None:
            with contextlib.suppress(BrokerError):
                return await consumer.receive(1, MINUTE, SECOND) or None
            return None

        (message,) = await eventually(received)
        assert message.body == b"a"
    finally:
        await consumer.close()


async def test_a_recall_without_a_right(place: Place) -> None:
    """A producer whose heartbeats are rejected would hear that the broker is an old one without timers."""
    handle = RecallHandle("T", "broker-a", int(time.time() * 1000) + 60_000, "id").encode()
    async with Producer("p", client=place.client("worker-1")) as producer:
        with pytest.raises(BrokerError, match=r"(?i)permission"):
            await producer.recall("T", handle)


CODES: Final = (
    RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION, RequestCode.PEEK_MESSAGE, RequestCode.POLLING_INFO,
    RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.QUERY_ASSIGNMENT,
)  # fmt: skip


def request_for(code: int, topic: str, group: str, receipt: Receipt) -> tuple[dict[str, str], bytes]:
    """Fields and body of a request of a consumer."""
    if code == RequestCode.BATCH_ACK_MESSAGE:
        ack = BatchAck(
            consumer_group=group, topic=topic, retry=TopicKind.NORMAL, start_offset=receipt.checkpoint_offset,
            queue_id=0, revive_queue_id=receipt.revive_queue, pop_time=receipt.pop_time,
            invisible_time=receipt.invisible_time, bit_set=b"\x01",
        )  # fmt: skip
        return {}, BatchAckMessageRequestBody(broker_name="broker-a", acks=[ack]).encode()
    if code == RequestCode.QUERY_ASSIGNMENT:
        body = QueryAssignmentRequestBody(topic=topic, consumer_group=group, client_id="c")
        return {}, body.encode()
    given = {
        "topic": topic, "consumerGroup": group, "queueId": "0", "offset": str(receipt.queue_offset),
        "extraInfo": receipt.encode(), "maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0",
        "bornTime": "0", "initMode": "0",
    }  # fmt: skip
    names = {field.encode_name for field in msgspec.structs.fields(REQUEST_HEADERS[code])}
    return {name: value for name, value in given.items() if name in names}, b""


@pytest.mark.parametrize("code", CODES, ids=lambda code: RequestCode(code).name)
async def test_foreign_retries_and_receipts(place: Place, code: int) -> None:
    """A worker could read, acknowledge or release what was given to a worker of another group."""
    await place.grant("worker-2", "T", "theirs")
    await send(place, "T", b"a")
    async with SimpleConsumer("theirs", config=FIRST, client=place.client("worker-2")) as consumer:
        consumer.subscribe("T")
        (message,) = await receive(consumer, 1)
        receipt = Handle.of(message).receipt
        for topic, group in (
            ("T", "theirs"),
            ("%RETRY%theirs_T", "g"),
            ("%RETRY%theirs+T", "g"),
            ("%RETRY%theirs_T", "theirs"),
            ("%RETRY%g_Secret", "g"),
            ("%RETRY%g+Secret", "g"),
            ("%DLQ%theirs", "g"),
        ):
            response = await place.ask("worker-1", code, *request_for(code, topic, group, receipt))
            assert response.code != ResponseCode.SUCCESS
            assert re.search(r"permission", response.remark or "", re.IGNORECASE), (topic, response)
        if code in (
            RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.BATCH_ACK_MESSAGE
        ):  # fmt: skip
            response = await place.ask("worker-1", code, *request_for(code, "T", "g", receipt))
            assert response.code == ResponseCode.NO_MESSAGE
        await consumer.ack(message)
