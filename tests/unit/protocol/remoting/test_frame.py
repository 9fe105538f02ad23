"""Frames: any cut of the stream gives the same commands, and nonsense is refused by name."""

from __future__ import annotations

import itertools
import struct
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import LocalProtocolError, RemoteProtocolError
from rocketpy.protocol.remoting.frame import Frame, FrameDecoder, encode_frame
from tests.golden_data import frames, scenarios

FRAMES = [
    Frame(0, b'{"code":10}', b"body"),
    Frame(1, b"", b""),
    Frame(77, b"\x97", b"x" * 5000),
]
STREAM = b"".join(encode_frame(*frame) for frame in FRAMES)


def feed_in_pieces(decoder: FrameDecoder, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        decoder.feed(data[start : start + size])


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_chunking_yields_the_same_frames(cuts: list[int]) -> None:
    """A client would lose or garble requests when the kernel cuts the stream at an unlucky place."""
    bounds = [0, *sorted(cuts), len(STREAM)]
    decoder = FrameDecoder()
    seen = [frame for start, end in itertools.pairwise(bounds) for frame in decoder.feed(STREAM[start:end])]
    assert seen == FRAMES
    assert decoder.buffered == 0


def test_all_frames_of_a_buffer_are_returned_together() -> None:
    """The broker would handle one request for each read, and be much slower."""
    assert FrameDecoder().feed(STREAM + STREAM[:3]) == FRAMES


@pytest.mark.parametrize("scenario", scenarios())
def test_recorded_streams_are_cut_as_recorded(scenario: str) -> None:
    """QUIRKS 1: a frame of the real RocketMQ would be cut elsewhere than RocketMQ cuts it."""
    recorded = frames(scenario)
    cut = FrameDecoder().feed(b"".join(frame.data for frame in recorded))
    assert [len(frame.header) for frame in cut] == [frame.info["headerLength"] for frame in recorded]
    assert [encode_frame(*frame) for frame in cut] == [frame.data for frame in recorded]


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (struct.pack(">iI", -1, 0), "length -1 is below"),
        (struct.pack(">iI", 3, 0), "length 3 is below"),
        (struct.pack(">iI", 1025, 0), "length 1025 is above the limit of 1024"),
        (struct.pack(">iI", 20, 17), "header length 17 does not fit"),
        (struct.pack(">iI", 900, 513), "header length 513 is above the limit of 512"),
        (struct.pack(">iI", 20, 9 << 24), "header codec 9 is unknown"),
        (b"GET / HTTP/1.1\r\n\r\n", "speaks HTTP.* above the limit"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS.* above the limit"),
    ],
)
@pytest.mark.parametrize("cut", [8, 7, 1])
def test_bad_lengths_and_codecs_are_named_at_once(prefix: bytes, reason: str, cut: int) -> None:
    """A stray HTTP client, or an attacker, could make a server wait for and buffer gigabytes."""
    decoder = FrameDecoder(max_frame_bytes=1024, max_header_bytes=512)
    with pytest.raises(RemoteProtocolError, match=reason):
        feed_in_pieces(decoder, prefix, cut)
    assert decoder.buffered == 0
    with pytest.raises(RemoteProtocolError, match=reason):
        decoder.feed(STREAM)


def test_the_limit_itself_is_allowed() -> None:
    """A message of exactly the largest size would be refused."""
    body = b"x" * (1024 - 4 - 512)
    frame = Frame(0, b" " * 512, body)
    assert FrameDecoder(max_frame_bytes=1024, max_header_bytes=512).feed(encode_frame(*frame)) == [frame]


@pytest.mark.parametrize(
    ("length", "header_bytes", "fits"),
    [(16 << 20, 1 << 20, True), ((16 << 20) + 1, 2, False), (16 << 20, (1 << 20) + 1, False)],
)
def test_the_usual_limits_are_rocketmqs(length: int, header_bytes: int, *, fits: bool) -> None:
    """A hostile peer would make a server keep more than a frame of RocketMQ's size, or be refused one."""
    decoder = FrameDecoder()
    prefix = struct.pack(">iI", length, header_bytes)
    if fits:
        assert decoder.feed(prefix) == []
    else:
        with pytest.raises(RemoteProtocolError, match="above the limit"):
            decoder.feed(prefix)


def test_a_large_frame_in_small_pieces_is_copied_once() -> None:
    """A message of several megabytes would take its receiver seconds, while all others wait."""
    data = encode_frame(0, b"{}", bytes((16 << 20) - 100))
    decoder = FrameDecoder()
    started = process_time()
    for start in range(0, len(data), 1024):
        frames = decoder.feed(data[start : start + 1024])
    assert [len(frame.body) for frame in frames] == [(16 << 20) - 100]
    assert process_time() - started < 5, "it takes a twentieth of a second"


def test_a_header_larger_than_24_bits_is_a_local_error() -> None:
    """A silently cut header length would garble every later frame of the connection."""
    with pytest.raises(LocalProtocolError, match="16777216 bytes"):
        encode_frame(0, b" " * 2**24)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_random_bytes_only_raise_the_typed_error(chunks: list[bytes]) -> None:
    """A hostile client would crash the connection handler with an unexpected error."""
    decoder = FrameDecoder(max_frame_bytes=4096)
    for chunk in chunks:
        try:
            decoder.feed(chunk)
        except RemoteProtocolError:
            return
