"""Headers: recorded ones are decoded into typed fields, and encoding them gives the recorded bytes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import (
    GetMaxOffsetRequestHeader,
    Header,
    PullMessageRequestHeader,
    SendMessageErrorHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from tests.golden_data import catalog, frames, scenarios, vectors
from tests.protocol_tables import HEADERLESS_REQUESTS, REQUEST_HEADERS, RESPONSE_HEADERS

OF_THE_COMMAND = {"AccessKey", "Signature"}
SEND_CODES = {10, 310, 320, 324, 325}
UNKNOWN_TO_ROCKETMQ_TOO = {9999}

RECORDINGS = [("remoting", name) for name in scenarios()] + [
    ("ha", name) for name in scenarios("ha") if name.startswith("remoting")
]


def recorded_headers(folder: str, scenario: str) -> Iterator[tuple[type[Header] | None, dict[str, str]]]:
    """The class that a recorded command's header should have, and its ext fields."""
    for frame in frames(scenario, folder):
        info = frame.info
        ext = {k: v for k, v in (info.get("extFields") or {}).items() if k not in OF_THE_COMMAND}
        if info["kind"] != "response":
            yield REQUEST_HEADERS.get(info["code"]), ext
        elif info["requestCode"] in SEND_CODES and "msgId" not in ext:
            yield SendMessageErrorHeader, ext
        elif ext:
            yield RESPONSE_HEADERS[info["requestCode"]], ext


@pytest.mark.parametrize(("folder", "scenario"), RECORDINGS)
def test_recorded_ext_fields_survive_a_round_trip(folder: str, scenario: str) -> None:
    """QUIRKS 3, 15, 18, 19, 27, 30, 32: a field of a real peer would be lost, renamed or changed."""
    for header_class, ext in recorded_headers(folder, scenario):
        if header_class is None:
            assert ext == {}
        else:
            assert msgspec.convert(ext, header_class, strict=False).ext_fields() == ext


def test_every_request_code_has_a_header_or_is_known_to_have_none() -> None:
    """A request that RocketMQ knows could not be sent or get its response with types."""
    assert set(REQUEST_HEADERS).isdisjoint(HEADERLESS_REQUESTS)
    assert set(REQUEST_HEADERS) | HEADERLESS_REQUESTS == set(RequestCode)
    recorded = {entry["code"] for entry in catalog()} - UNKNOWN_TO_ROCKETMQ_TOO
    assert recorded <= set(REQUEST_HEADERS) | HEADERLESS_REQUESTS
    assert set(RESPONSE_HEADERS) <= set(RequestCode)


def test_v2_is_the_first_form_under_letters() -> None:
    """QUIRKS 19: brokers would read a topic as a group, and a handler would need two versions."""
    v2 = next(v for v in vectors("remotingCommandEncode") if v["code"] == RequestCode.SEND_MESSAGE_V2)
    header = msgspec.convert(v2["extFields"], SendMessageRequestHeaderV2, strict=False)
    assert isinstance(header, SendMessageRequestHeader)
    assert (header.producer_group, header.topic, header.queue_id, header.batch) == ("pg", "T", 1, False)
    assert header.ext_fields() == v2["extFields"]
    v1 = SendMessageRequestHeader(**{name: getattr(header, name) for name in header.__struct_fields__})
    assert set(v1.ext_fields()) == {
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
        "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "batch",
    }  # fmt: skip


def test_numbers_and_booleans_travel_as_text() -> None:
    """QUIRKS 3: Java peers, which read every value from a string, would lose the largest offsets or -1."""
    offset = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="t", queue_id=-1, commit_offset=2**63 - 1
    )
    assert offset.ext_fields()["commitOffset"] == "9223372036854775807"
    raw = msgspec.json.encode(offset.ext_fields())
    assert msgspec.json.decode(raw, type=UpdateConsumerOffsetRequestHeader, strict=False) == offset
    v2 = {
        "a": "g",
        "b": "t",
        "c": "d",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "m": "true",
        "k": "False",
    }
    header = msgspec.convert(v2, SendMessageRequestHeaderV2, strict=False)
    assert (header.batch, header.unit_mode) == (True, False)
    assert (header.ext_fields()["m"], header.ext_fields()["k"]) == ("true", "false")


@pytest.mark.parametrize(
    ("ext", "reason"),
    [
        ({"topic": "t"}, "queueId"),
        ({"topic": "t", "queueId": str(2**40)}, "<= 2147483647"),
        ({"topic": "t", "queueId": str(-(2**31) - 1)}, ">= -2147483648"),
        ({"topic": "t", "queueId": ""}, "queueId"),
        ({"topic": "t", "queueId": "three"}, "queueId"),
    ],
)
def test_values_out_of_range_are_rejected_by_name(ext: dict[str, str], reason: str) -> None:
    """A wrong field would reach the store as another number instead of being refused."""
    with pytest.raises(msgspec.ValidationError, match=reason):
        msgspec.convert(ext, GetMaxOffsetRequestHeader, strict=False)


def test_longs_beyond_64_bits_are_rejected() -> None:
    """A consume queue would get a request for an offset that cannot exist."""
    ext = dict.fromkeys(("queueId", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"), "1")
    ext |= {"consumerGroup": "g", "topic": "t", "subVersion": "0", "queueOffset": str(2**63)}
    with pytest.raises(msgspec.ValidationError, match="queueOffset"):
        msgspec.convert(ext, PullMessageRequestHeader, strict=False)
