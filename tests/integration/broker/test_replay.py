"""Replays requests that Java clients sent to Java brokers, and compares the responses."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command, encode_command
from rocketpy.transport import Address
from rocketpy_broker import EmbeddedCluster
from tests.golden_data import RecordedFrame, frames
from tests.integration.raw_client import RawClient

BROKER_A, BROKER_B = "127.0.0.1:20010", "127.0.0.1:20030"
COMMON = {"brokerClusterName": "GoldenCluster"}
STRICT = {**COMMON, "autoCreateTopicEnable": "false", "maxMessageSize": "1024"}


@pytest.fixture
async def brokers() -> AsyncIterator[dict[str, Address]]:
    """The recorded broker addresses, each with the address of a broker with the same settings."""
    async with EmbeddedCluster(settings=COMMON) as a, EmbeddedCluster(settings=STRICT) as b:
        yield {BROKER_A: a.brokers[0].address, BROKER_B: b.brokers[0].address}


class Replay:
    """Sends recorded frames in order, over one connection where there was one."""

    def __init__(self, brokers: dict[str, Address]) -> None:
        self.brokers = brokers
        self.clients: dict[tuple[str, str], RawClient] = {}

    async def run(self, scenario: str) -> list[tuple[RecordedFrame, Command, RecordedFrame]]:
        """Each request with the response of this broker and the recorded one."""
        recording = frames(scenario)
        by_number = {frame.info["n"]: frame for frame in recording}
        exchanges = []
        for frame in recording:
            info = frame.info
            if info["server"] not in self.brokers or info["dir"] != "c2s" or info["kind"] == "response":
                continue
            client = await self._client(info)
            if info["kind"] == "oneway":
                client.writer.write(frame.data)
                await client.call(RequestCode.GET_ALL_TOPIC_CONFIG)  # its response comes after that
                continue
            response = await client.call_frame(frame.data)
            recorded = info.get("response")
            if recorded is not None and recorded["scenario"] == scenario:
                exchanges.append((frame, response, by_number[recorded["n"]]))
        return exchanges

    async def _client(self, info: dict[str, Any]) -> RawClient:
        key = info["client"], info["server"]
        if key not in self.clients:
            self.clients[key] = await RawClient.open(self.brokers[info["server"]])
        return self.clients[key]

    async def close(self) -> None:
        for client in self.clients.values():
            client.writer.close()


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
    left_out = {"msgId"} if scenario == "json-producer" else {"msgId", "queueOffset"}
    return code, {key: value for key, value in fields.items() if key not in left_out}


@pytest.mark.parametrize("scenario", ["json-producer", "json-v1", "bin-producer"])
async def test_recorded_producers_get_the_recorded_responses(replay: Replay, scenario: str) -> None:
    """QUIRKS 2, 10, 16, 18-20, 22-24: a Java producer would get unexpected results."""
    exchanges = await replay.run(scenario)
    different = [
        (request.info["n"], request.info["step"], ours, theirs)
        for request, response, recorded in exchanges
        if (ours := _comparable(response.code, response.ext_fields(), scenario))
        != (theirs := _comparable(recorded.info["code"], recorded.info["extFields"] or {}, scenario))
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
