"""Replays requests that Java brokers and clients sent to a Java name server, and compares the responses."""

from collections.abc import Iterator
from typing import Any

import pytest

from rocketpy.protocol import fastjson
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import Command, decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy.transport import Address
from rocketpy_broker.config.model import ListenConfig, NamesrvConfig
from rocketpy_broker.namesrv import NameServer
from tests.golden_data import RecordedFrame, frames
from tests.integration.raw_client import RawClient

RECORDED_SERVER = "127.0.0.1:20000"
RUN = ("boot", "json-producer", "json-consumer", "json-push", "json-rpc", "json-v1", "json-admin",
       "bin-producer", "bin-consumer", "bin-rpc", "bin-admin", "shutdown")  # fmt: skip
"""Scenarios between one start and stop of the recorded name server."""
REFUSED_HERE = {RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}
"""Settings: they differ from Java's, and cannot be changed by default, unlike in 4.6.0."""


def recorded_exchanges() -> Iterator[tuple[RecordedFrame, RecordedFrame | None]]:
    """Each request to the recorded name server with its response, in order of time."""
    found = []
    for scenario in RUN:
        recording = frames(scenario)
        by_number = {frame.info["n"]: frame for frame in recording}
        for frame in recording:
            info = frame.info
            if info["server"] == RECORDED_SERVER and info["dir"] == "c2s" and info["kind"] != "response":
                found.append((info["time"], frame, by_number.get((info.get("response") or {}).get("n"))))
    for _, request, response in sorted(found, key=lambda entry: entry[0]):
        yield request, response


def comparable(response: Command) -> Any:
    """A response with sorted lists and unordered maps, since Java's hash order is arbitrary."""
    body = fastjson.loads(response.body) if response.body else None
    if isinstance(body, dict) and "topicList" in body:
        body.pop("brokerAddr", None)  # address of the first broker in hash order
    return response.code, response.remark, response.ext_fields(), _sorted(body)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _sorted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(inner) for inner in value), key=repr)
    return value


@pytest.fixture
async def namesrv() -> Any:
    """A running name server on a free port."""
    server = NameServer(NamesrvConfig(listen=ListenConfig(address=Address("tcp", "127.0.0.1", 0))))
    await server.start()
    yield server
    await server.close()


async def test_recorded_requests_get_the_recorded_responses(namesrv: NameServer) -> None:
    """QUIRKS 8, 9, 11-15: a Java broker or client would read other routes than expected."""
    clients: dict[str, RawClient] = {}
    different = []
    compared = 0
    for request, response in recorded_exchanges():
        conn = f"{request.info['client']}"
        if conn not in clients:
            clients[conn] = await RawClient.open(namesrv.address)
        if request.info["kind"] == "oneway":
            clients[conn].writer.write(request.data)
            await clients[conn].call(
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            )  # its response comes after those of earlier requests
            continue
        received = await clients[conn].call_frame(request.data)
        if response is None or request.info["code"] in REFUSED_HERE:
            continue
        compared += 1
        recorded = decode_command(FrameDecoder().feed(response.data)[0])
        ours, theirs = comparable(received), comparable(recorded)
        if ours != theirs:
            different.append((request.info["n"], request.info["step"], ours, theirs))
    for client in clients.values():
        client.writer.close()
    assert different == []
    assert compared > 50
