"""Batch bodies: a Java broker splits them as this broker does."""

from __future__ import annotations

import struct

import pytest

from rocketpy.errors import MessageTooLarge, RemoteProtocolError
from rocketpy.protocol.message.batch import BatchMessage, decode_batch, encode_batch
from tests.golden_data import frames, scenarios, vectors

BATCH = vectors("messageEncode")[1]
MESSAGES = [
    BatchMessage(0, b"batch0", b"KEYS\x01K1\x02WAIT\x01true\x02TAGS\x01TagX\x02"),
    BatchMessage(9, b"batch1", b"WAIT\x01true\x02"),
]


def test_bytes_are_javas() -> None:
    """QUIRKS 23: a Java broker would reject or misread a batch of this client."""
    assert encode_batch(MESSAGES).hex() == BATCH["hex"]
    assert b"".join(encode_batch([message]) for message in MESSAGES).hex() == BATCH["hex"]
    assert decode_batch(bytes.fromhex(BATCH["hex"])) == MESSAGES
    assert encode_batch([]) == b""
    assert decode_batch(b"") == []


def test_recorded_batches_survive_a_round_trip() -> None:
    """QUIRKS 22, 23: a batch of a Java producer would be stored with other bodies or properties."""
    seen = 0
    for scenario in scenarios():
        for info, data in frames(scenario):
            if "bodyBatch" in info:
                body = data[len(data) - info["bodyLength"] :]
                messages = decode_batch(body)
                assert len(messages) == len(info["bodyBatch"])
                assert encode_batch(messages) == body
                seen += len(messages)
    assert seen > 5


@pytest.mark.parametrize("lengths", [[(3, 5)] * 9, [(3, 5), (5, 3), (3, 5)], [(3, 5), (4, 4)], [(0, 0)] * 4])
def test_messages_of_one_size_are_split_where_each_ends(lengths: list[tuple[int, int]]) -> None:
    """A message of the same size with another body length would get shifted properties."""
    messages = [(flag, b"b" * body, b"p" * text) for flag, (body, text) in enumerate(lengths)]
    assert decode_batch(encode_batch(messages)) == messages


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0" * 21, "21 bytes left; an element has at least 22"),
        (struct.pack(">iiiiiH", 2**31 - 1, 0, 0, 0, 0, 0), "size 2147483647"),
        (struct.pack(">iiiiiH", -1, 0, 0, 0, 0, 0), "size -1"),
        (struct.pack(">iiiiiH", 22, 0, 0, 0, 1, 0), "body length 1"),
        (struct.pack(">iiiiiH", 22, 0, 0, 0, -5, 0), "body length -5"),
        (struct.pack(">iiiiiH", 22, 0, 0, 0, 0, 7), "its parts have 29 bytes"),
        (struct.pack(">iiiii3sH", 30, 0, 0, 0, 3, b"abc", 0) + bytes(5), "its parts have 25 bytes"),
        (encode_batch(MESSAGES) + b"x", "element 2: 1 bytes left"),
        (encode_batch([(0, b"abc", b"")] * 3)[:-1] + b"x" * 26, "element 2"),
        (struct.pack(">iiiii6s", 26, 0, 0, 0, 3, b"abc\0\1p") * 2 + bytes(26), "element 2: size 0"),
    ],
)
def test_lengths_that_contradict_each_other(data: bytes, reason: str) -> None:
    """A damaged batch would be stored as messages that were never sent."""
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_batch(data)


def test_properties_beyond_16_bits_are_rejected() -> None:
    """QUIRKS 24: the length would wrap, and the broker would cut the batch at the wrong place."""
    assert len(encode_batch([(0, b"", b"x" * 32767)])) == 32789
    too_long = (0, b"", b"x" * 32768)
    for batch in ([too_long], [MESSAGES[0], too_long], [too_long, MESSAGES[0]]):
        with pytest.raises(MessageTooLarge, match="32768 bytes; the limit is 32767"):
            encode_batch(batch)


@pytest.mark.parametrize(("body", "properties"), [(0, 0), (2, 0), (6, 6), (22, 22), (1000, 301)])
def test_an_element_has_its_size(body: int, properties: int) -> None:
    """A broker would read the following bytes as a part of it."""
    element = encode_batch([(1, bytes(body), b"p" * properties)])
    assert int.from_bytes(element[:4], "big") == len(element) == 22 + body + properties
