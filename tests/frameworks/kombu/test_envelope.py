"""Bodies of messages, which any program may have written."""

from __future__ import annotations

import json
import math

import kombu
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport import virtual

from rocketpy_kombu import envelope

pytestmark = pytest.mark.frameworks
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["body", "properties", "x"]), inner),
)


@pytest.mark.parametrize(
    "body",
    [
        b'{"__type__": "uuid", "__value__": {"hex": 1}}',
        b'{"body": "", "properties": {"delivery_info": 7, "expiration": Infinity}}',
        b'{"body": 5, "properties": {}}',
        b'{"body": "x", "properties": {"body_encoding": "zip"}}',
        b'{"body": "x", "properties": {"body_encoding": [7]}}',
        b'{"body": "x", "properties": {"body_encoding": "base64"}}',
        b'{"body": "x", "properties": {}, "headers": [1]}',
        b"[" * 100_000,
        b"\xff",
        b"7",
    ],
)
def test_no_body_stops_a_worker(body: bytes) -> None:
    """A worker would receive such a message again and again, and no other."""
    payload = envelope.decode(body)
    envelope.mark_delivered(payload, "jobs", "tag", redelivered=True)
    assert payload["properties"]["delivery_info"] == {"queue": "jobs", "redelivered": True}
    assert envelope.expiry_ms(payload, 0) == math.inf
    virtual.Message(payload, virtual.Channel(kombu.Connection("memory://").transport))


@given(JSON | st.builds(lambda one, two: {"body": one, "properties": two}, JSON, JSON))
def test_any_json_is_a_message(value: object) -> None:
    """As above."""
    payload = envelope.decode(json.dumps(value).encode())
    envelope.mark_delivered(payload, "jobs", "tag", redelivered=False)
    assert payload["properties"]["delivery_tag"] == "tag"
    envelope.expiry_ms(payload, 0)
