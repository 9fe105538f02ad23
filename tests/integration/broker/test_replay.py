"""Replays requests that Java clients sent to Java brokers, and compares the responses."""

import itertools
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from rocketpy_broker import EmbeddedCluster
from tests.golden_data import RecordedFrame, frames
from tests.integration.raw_client import RawClient

OWN_FIELDS = frozenset({"rocketpyFeatures"})
"""Fields of our responses that RocketMQ's clients ignore."""
BROKER_A, BROKER_B = "127.0.0.1:20010", "127.0.0.1:20030"
COMMON = {"brokerClusterName": "GoldenCluster"}
STRICT = {**COMMON, "autoCreateTopicEnable": "false", "maxMessageSize": "1024"}


@pytest.fixture
async def brokers() -> AsyncIterator[dict[str, Address]]:
    """The recorded broker addresses, each with the address of a broker with the same settings."""
    async with EmbeddedCluster(settings=COMMON) as a, EmbeddedCluster(settings=STRICT) as b:
        yield {BROKER_A: a.brokers[0].address, BROKER_B: b.brokers[0].address}


MAY_WAIT = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.CONSUME_MESSAGE_DIRECTLY,
})  # fmt: skip
"""Requests that are held, or forwarded to a client that does not exist in a replay."""
UNKNOWN_CODE = 9999
NO_RESPONSE = -1
MARKS = itertools.count(1 << 30)
"""Numbers of requests, above the recorded ones."""


class Exchange(NamedTuple):
    """A recorded request, the response of this broker and the recorded one."""

    request: RecordedFrame
    ours: Command | None
    theirs: RecordedFrame

    @property
    def response(self) -> Command:
        """The response of this broker, which does not hold the request."""
        assert self.ours is not None
        return self.ours


class Replay:
    """Sends recorded frames in order, over one connection where there was one."""

    def __init__(self, brokers: dict[str, Address]) -> None:
        self.brokers = brokers
        self.clients: dict[tuple[str, str], RawClient] = {}

    async def run(self, scenario: str) -> list[Exchange]:
        """Send the requests of a scenario; held ones get no response here."""
        recording = frames(scenario)
        by_number = {frame.info["n"]: frame for frame in recording}
        exchanges = []
        for frame in recording:
            info = frame.info
            if info["server"] not in self.brokers or info["dir"] != "c2s" or info["kind"] == "response":
                continue
            client = await self._client(info)
            client.writer.write(frame.data)
            if info["kind"] == "oneway":
                await response_to(client, NO_RESPONSE, may_wait=True)  # until it was handled
                continue
            recorded = info.get("response")
            if recorded is not None and recorded["scenario"] == scenario:
                ours = await response_to(client, info["opaque"], may_wait=info["code"] in MAY_WAIT)
                exchanges.append(Exchange(frame, ours, by_number[recorded["n"]]))
        return exchanges

    async def _client(self, info: dict[str, Any]) -> RawClient:
        key = info["client"], info["server"]
        if key not in self.clients:
            self.clients[key] = await RawClient.open(self.brokers[info["server"]])
        return self.clients[key]

    async def close(self) -> None:
        for client in self.clients.values():
            client.writer.close()


async def response_to(client: RawClient, opaque: int, *, may_wait: bool) -> Command | None:
    """The response to a request; None when it is held. Requests of the broker are skipped.

    A request with an unknown code follows: if its response arrives first, the request is held.
    """
    mark = Command.request(UNKNOWN_CODE)
    mark.opaque = next(MARKS)
    if may_wait:
        client.writer.write(encode_command(mark))
    while True:
        command = await client.next()
        if command.is_response and command.opaque in (opaque, mark.opaque):
            return command if command.opaque == opaque else None


@pytest.fixture
async def replay(brokers: dict[str, Address]) -> AsyncIterator[Replay]:
    """A replay against fresh brokers."""
    run = Replay(brokers)
    yield run
    await run.close()


def _comparable(code: int, fields: dict[str, str], scenario: str) -> tuple[int, dict[str, str]]:
    """The fields that must be equal. Message ids contain addresses, and physical offsets vary; the
    scenarios after the first found messages in their queues.
    """
    left_out = OWN_FIELDS | ({"msgId"} if scenario == "json-producer" else {"msgId", "queueOffset"})
    return code, {key: value for key, value in fields.items() if key not in left_out}


@pytest.mark.parametrize("scenario", ["json-producer", "json-v1", "bin-producer"])
async def test_recorded_producers_get_the_recorded_responses(replay: Replay, scenario: str) -> None:
    """QUIRKS 2, 10, 16, 18-20, 22-24: a Java producer would get unexpected results."""
    exchanges = await replay.run(scenario)
    different = [
        (one.request.info["n"], one.request.info["step"], ours, theirs)
        for one in exchanges
        if (ours := _comparable(one.response.code, one.response.ext_fields(), scenario))
        != (theirs := _comparable(one.theirs.info["code"], one.theirs.info["extFields"] or {}, scenario))
    ]
    assert different == []
    assert len(exchanges) >= 4


@pytest.mark.parametrize("scenario", ["json-rpc", "bin-rpc"])
async def test_recorded_replies_get_the_recorded_responses(replay: Replay, scenario: str) -> None:
    """QUIRKS 30: a Java client's request would get no response, or its response be taken for a failure."""
    compared = 0
    for frame in frames(scenario):
        info = frame.info
        if info["server"] not in replay.brokers:
            continue
        names = {info.get("codeName"), info.get("requestCodeName")}
        client = await replay._client(info)
        if names & {"SEND_REPLY_MESSAGE_V2", "HEART_BEAT"} and (info["dir"], info["kind"]) == (
            "c2s",
            "request",
        ):
            client.writer.write(frame.data)
        elif "HEART_BEAT" in names and info["kind"] == "response":
            assert (await _next_but(client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)).code == 0
        elif "PUSH_REPLY_MESSAGE_TO_CLIENT" in names and info["kind"] == "request":
            push = await _next_but(client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
            assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            assert _same_push(push.ext_fields(), info["extFields"])
            client.writer.write(encode_command(push.reply()))
        elif "SEND_REPLY_MESSAGE_V2" in names and info["kind"] == "response":
            response = await _next_but(client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
            ours = _comparable(response.code, response.ext_fields(), scenario)
            assert ours == _comparable(info["code"], info["extFields"], scenario)
            assert response.remark == info.get("remark")
            compared += 1
    assert compared >= 2


async def _next_but(client: RawClient, code: int) -> Command:
    """The next frame that is not a request with this code."""
    while (command := await client.next()).code == code and not command.is_response:
        pass
    return command


def _same_push(ours: dict[str, str], theirs: dict[str, str]) -> bool:
    """Equal, except for fields that differ in two runs, and for fields with their default value."""
    varying = {"bornHost", "storeHost", "storeTimestamp", "properties"}
    defaults = {"unitMode": "false"}
    ours_kept = {key: value for key, value in {**defaults, **ours}.items() if key not in varying}
    return ours_kept == {key: value for key, value in theirs.items() if key not in varying}
