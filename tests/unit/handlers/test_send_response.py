"""The template for responses to sends, against the ordinary encoder."""

from typing import cast

import pytest

from rocketpy.protocol.headers import SendMessageResponseHeader
from rocketpy.protocol.remoting.command import Command, decode_command, encode_command
from rocketpy.protocol.remoting.frame import CODEC_JSON, CODEC_ROCKETMQ, FrameDecoder
from rocketpy.transport import Channel
from rocketpy_broker.handlers.send.response import ParkedResponse, SendResponses

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
NOBODY = cast(Channel, None)


@pytest.mark.parametrize("region", ["DefaultRegion", 'a"b\\c', "100%", "重庆"])
@pytest.mark.parametrize(
    ("trace_on", "handle"), [(True, None), (False, None), (True, "djEgVA=="), (False, "eA-_")]
)
def test_the_template_writes_the_same_as_the_encoder(region: str, trace_on: bool, handle: str | None) -> None:
    """The fast path and the encoder could differ, and clients would see both."""
    responses = SendResponses(store_host=HOST, region_id=region, trace_on=trace_on)
    request = Command(310, opaque=77, flag=0x100, codec=CODEC_JSON)
    header = SendMessageResponseHeader(
        msg_region=region,
        trace_on=trace_on,
        msg_id="7F00000100002A9F00000000000012AB",
        queue_id=3,
        queue_offset=9,
        recall_handle=handle,
    )
    parked = ParkedResponse(NOBODY, request, 3, 9, (0x12AB,), waits=False, recall_handle=handle)
    assert responses.stored(parked, 10) == encode_command(request.reply(10, header=header))


def test_a_batch_has_all_its_ids() -> None:
    """QUIRKS 18: the result of a batch would name only one of its messages."""
    responses = SendResponses(store_host=HOST, region_id="r", trace_on=True)
    parked = ParkedResponse(NOBODY, Command(320, opaque=1), 0, 5, (0, 0xB3), waits=False)
    (frame,) = FrameDecoder().feed(responses.stored(parked))
    ids = decode_command(frame).ext_fields()["msgId"]
    assert ids == "7F00000100002A9F0000000000000000,7F00000100002A9F00000000000000B3"


def test_a_binary_request_gets_a_binary_response() -> None:
    """A client with another codec would get a response that it cannot read."""
    responses = SendResponses(store_host=HOST, region_id="r", trace_on=True)
    request = Command(310, opaque=1, codec=CODEC_ROCKETMQ)
    (frame,) = FrameDecoder().feed(responses.stored(ParkedResponse(NOBODY, request, 2, 5, (7,), waits=False)))
    assert frame.codec == CODEC_ROCKETMQ
    assert decode_command(frame).ext_fields()["queueId"] == "2"
