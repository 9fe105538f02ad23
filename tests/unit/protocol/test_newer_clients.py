"""Requests that the Java client 5.5.0 sends to a broker of 5.5.0: what rocketpy reads of them."""

from __future__ import annotations

from rocketpy.protocol.bodies import HeartbeatData
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from tests.golden_data import frames
from tests.protocol_tables import HEADERLESS_REQUESTS, REQUEST_HEADERS

IGNORED = {"ns", "nsd", "bname", "n", "lo", "maxMsgBytes", "force"}
"""Fields of 5.x that change nothing here (QUIRKS 82); `n` is the short form of `bname`."""


def test_each_field_is_read_or_ignored_on_purpose() -> None:
    """A field of newer clients that matters would be skipped."""
    ignored: set[str] = set()
    for frame in frames("5.5.0", "clients"):
        if frame.info["kind"] == "response":
            continue
        (data,) = FrameDecoder().feed(frame.data)
        command, fields = decode_command(data), frame.info["extFields"] or {}
        header_class = REQUEST_HEADERS.get(command.code)
        known: dict[str, str] = {}
        if header_class is None:
            assert command.code in HEADERLESS_REQUESTS
        else:
            known = command.header_as(header_class).ext_fields()
        ignored |= fields.keys() - known.keys()
        assert {name: text for name, text in fields.items() if name in known} == {
            name: text for name, text in known.items() if name in fields
        }
    assert ignored <= IGNORED


def test_heartbeats_name_their_subscriptions_or_say_that_they_do_not() -> None:
    """QUIRKS 81: one without subscriptions would be taken for one of a consumer that has none."""
    beats = [
        HeartbeatData.decode(frame.data[-frame.info["bodyLength"] :])
        for frame in frames("5.5.0", "clients")
        if frame.info["code"] == RequestCode.HEART_BEAT and frame.info["kind"] != "response"
    ]
    for beat in beats:
        for data in beat.consumer_data_set:
            assert bool(data.subscription_data_set) == (not beat.without_sub)
    assert {beat.without_sub for beat in beats} == {True, False}
