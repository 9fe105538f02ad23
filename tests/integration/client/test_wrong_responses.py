"""Consumers whose brokers send inconsistent responses, or respond at once without messages."""

from __future__ import annotations

import logging
import time
from itertools import pairwise

import pytest

from rocketpy import (
    LitePullConfig,
    LitePullConsumer,
    MessageQueue,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from rocketpy.consumer.fetch import puller
from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol.bodies import GetConsumerListByGroupResponseBody, ResetOffsetBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetMaxOffsetResponseHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
    ResetOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import Names, Peer
from tests.mqconsumer.group import Seen, until

HOST = host_bytes("127.0.0.1", 10911)
QUEUE = MessageQueue("T", "a", 0)
FOUND, EMPTY = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
UNMATCHED, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
PAUSE_S = 0.02
"""The first pause after an invalid response in these tests."""


def record(offset: int) -> bytes:
    return encode_record(
        b"T", 0, 0, offset, 1000 + offset, 0, 1, HOST, 2, HOST, 0, 0, b"message %d" % offset, b""
    )


class Odd(Peer):
    """A broker with one queue of offsets 2 to 4, which responds correctly once `is_healed`.

    code, following, low, high, body: its response to pulls until then. pulls: the times of pulls from
    offset `place`, in s.
    """

    def __init__(
        self, code: int, following: int, low: int = 2, high: int = 5, body: bytes = b"", place: int = 2
    ) -> None:
        super().__init__(self.respond)
        self.wrong = (code, following, low, high, body)
        self.place = place
        self.client_id = ""
        self.is_healed = False
        self.pulls: list[float] = []

    def respond(self, channel: Channel, request: Command) -> Command | None:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            members = GetConsumerListByGroupResponseBody(consumer_id_list=[self.client_id])
            return request.reply(body=members.encode())
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return request.reply(header=QueryConsumerOffsetResponseHeader(offset=2))
        if request.code == RequestCode.PULL_MESSAGE:
            return self.pulled(channel, request)
        return request.reply()

    def pulled(self, channel: Channel, request: Command) -> Command | None:
        header = request.header_as(PullMessageRequestHeader)
        if header.topic != "T" or header.queue_offset >= 5:
            channel.exclude_from_unanswered()
            return None
        if not self.is_healed:
            if header.queue_offset == self.place:  # other pulls were sent before the response
                self.pulls.append(time.monotonic())
            code, following, low, high, body = self.wrong
            return self.reply(request, code, following, low, high, body)
        body = b"".join(record(offset) for offset in range(header.queue_offset, 5))
        return self.reply(request, FOUND, 5, 2, 5, body)

    def reply(self, request: Command, code: int, following: int, low: int, high: int, body: bytes) -> Command:
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=following, min_offset=low, max_offset=high
        )
        return request.reply(code, header=header, body=body)

    @property
    def pauses(self) -> list[float]:
        return [after - before for before, after in pairwise(self.pulls)]


def push(names: Names, seen: Seen) -> PushConsumer:
    names.queues = 1
    consumer = PushConsumer("g", names.address, seen, config=PushConfig(rebalance_interval_ms=10))
    consumer.subscribe("T")
    return consumer


WRONG: dict[str, tuple[int, int, int, int, bytes]] = {
    "below zero": (EMPTY, -5, 2, 5, b""),
    "below zero, unmatched": (UNMATCHED, -1, 2, 5, b""),
    "below zero, moved": (MOVED, -5, 2, 5, b""),
    "min below zero": (UNMATCHED, 3, -1, 5, b""),
    "min above max": (EMPTY, 2, 5, 4, b""),
    "back": (EMPTY, 1, 0, 5, b""),
    "back, unmatched": (UNMATCHED, 1, 0, 5, b""),
    "found, and no further": (FOUND, 2, 2, 5, record(2)),
    "found, without messages": (FOUND, 3, 2, 5, b""),
    "found elsewhere": (FOUND, 3, 2, 5, record(4)),
    "found twice": (FOUND, 4, 2, 5, record(2) + record(2)),
}


@pytest.mark.parametrize("response", WRONG.values(), ids=WRONG)
async def test_a_wrong_response_is_not_followed(
    response: tuple[int, int, int, int, bytes],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer pulled from -5, and stored that as its group's progress, or pulled without a pause."""
    monkeypatch.setattr(puller, "_PAUSE_MIN_S", PAUSE_S)
    seen = Seen()
    async with Odd(*response) as broker, Names(T={"a": broker.address}) as names:
        consumer = push(names, seen)
        async with consumer:
            broker.client_id = consumer.health().client_id
            await until(lambda: len(broker.pulls) >= 4)
            (problem,) = consumer.health().problems
            assert "broker a responded to a pull of" in problem
            broker.is_healed = True
            await seen.until(b"message 4")
            assert seen.bodies == [b"message 2", b"message 3", b"message 4"]
            await until(lambda: consumer.health().ok)
    assert all(pause >= PAUSE_S * 2**number for number, pause in enumerate(broker.pauses[:3]))
    logged = [record for record in caplog.records if "broker a responded to a pull of" in record.getMessage()]
    assert [record.levelno for record in logged] == [logging.ERROR]


async def test_pulls_that_return_at_once_are_repeated_less_often() -> None:
    """A consumer pulled 2,300 times a second where a broker did not hold its pulls."""
    seen = Seen()
    async with (
        Odd(EMPTY, 2) as broker,
        Names(T={"a": broker.address}) as names,
        push(names, seen) as consumer,
    ):
        broker.client_id = consumer.health().client_id
        await until(lambda: len(broker.pulls) >= 10)
        assert consumer.health().ok
        broker.is_healed = True
        await seen.until(b"message 4")
    assert all(pause >= 0.001 * 2**number for number, pause in enumerate(broker.pauses[:9]))


async def test_repeated_moves_of_a_queue_are_followed_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer with assigned queues pulled, and stored its progress, without a pause."""
    monkeypatch.setattr(puller, "_PAUSE_MIN_S", PAUSE_S)
    async with Odd(MOVED, 3, place=3) as broker, Names(T={"a": broker.address}) as names:
        names.queues = 1
        async with LitePullConsumer("g", names.address, config=LitePullConfig()) as consumer:
            await consumer.assign([QUEUE])
            await until(lambda: len(broker.pulls) >= 5)
            broker.is_healed = True
            assert [message.body for message in await consumer.poll(10_000)] == [b"message 3", b"message 4"]
    assert all(pause >= PAUSE_S * 2**number for number, pause in enumerate(broker.pauses[:4]))


async def test_a_pull_consumer_reports_it_to_its_caller() -> None:
    """An application would pull from -5, and get the error that its own offset is invalid."""
    for code, following, low, high, body in WRONG.values():
        async with (
            Odd(code, following, low, high, body) as broker,
            Names(T={"a": broker.address}) as names,
            PullConsumer("g", names.address) as consumer,
        ):
            with pytest.raises(RemoteProtocolError, match="broker a responded to a pull"):
                await consumer.pull(QUEUE, 2)


@pytest.mark.parametrize("ask", ["min_offset", "max_offset", "search_offset", "committed"])
async def test_an_offset_below_zero_in_a_response_is_rejected(ask: str) -> None:
    """An application, or a consumer at its start, would use it as a position in the queue."""
    headers = {
        RequestCode.GET_MIN_OFFSET: GetMinOffsetResponseHeader(offset=-3),
        RequestCode.GET_MAX_OFFSET: GetMaxOffsetResponseHeader(offset=-3),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetResponseHeader(offset=-3),
        RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetResponseHeader(offset=-3),
    }

    def respond(_: Channel, request: Command) -> Command:
        return request.reply(header=headers.get(RequestCode(request.code)))

    async with (
        Peer(respond) as broker,
        Names(T={"a": broker.address}) as names,
        PullConsumer("g", names.address) as consumer,
    ):
        arguments = (QUEUE, 1000) if ask == "search_offset" else (QUEUE,)
        with pytest.raises(RemoteProtocolError, match=r"broker a sent -3 as the"):
            await getattr(consumer, ask)(*arguments)


async def test_a_reset_to_an_offset_below_zero_is_rejected() -> None:
    """An operator who resets offsets by mistake would stop the consumer."""
    seen = Seen()
    async with Odd(EMPTY, 2) as broker, Names(T={"a": broker.address}) as names:
        broker.is_healed = True
        async with push(names, seen) as consumer:
            broker.client_id = consumer.health().client_id
            await seen.until(b"message 4")
            header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True)
            body = ResetOffsetBody(offset_table={QUEUE: -7}).encode()
            request = Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
            response = await broker.channels[-1].request(request, 5000)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert "sent -7" in (response.remark or "")
            assert consumer.progress()[QUEUE] == 5
