"""Records of pull responses in both forms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpy.native import FORMS
from rocketpy.protocol.message.record import encode_record, split_records
from tests.native_forms import both, needs_native

pytestmark = needs_native

HOST = bytes(8)
FLAGS = st.sampled_from([0, 0, 0, 0, 1, 0x10, 0x20, 4])
TOPICS = st.sampled_from([b"T", b"T", b"T", b"Topic", "\u0442".encode(), b"", b"t" * 127])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record; most are usual."""
    sys_flag = draw(FLAGS)
    return encode_record(
        draw(TOPICS), draw(st.sampled_from([0, 0, 0, 1, -1])), draw(st.integers(0, 9)),
        draw(st.integers(-(1 << 63), (1 << 63) - 1)), 5, sys_flag, 6,
        bytes(20) if sys_flag & 0x10 else HOST, 7, bytes(20) if sys_flag & 0x20 else HOST, 0, 0,
        draw(st.binary(max_size=40)), draw(st.binary(max_size=20)),
    )  # fmt: skip


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Records with up to three changed bytes, perhaps cut off."""
    data = bytearray(b"".join(draw(st.lists(records(), max_size=6))))
    for _ in range(draw(st.integers(0, 3)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@given(responses() | st.binary(max_size=300), st.integers(0, 300), TOPICS, st.integers(-1, 1), st.booleans())
def test_both_forms_split_the_same_records(
    data: bytes, start: int, topic: bytes, queue_id: int, check_crc: bool
) -> None:
    """A consumer would skip messages, or get damaged ones."""
    both(split_records)(data, start, topic, queue_id, check_crc)
    both(split_records)(data, 0, topic, queue_id, check_crc)


def test_a_topic_that_is_too_long_for_a_record_has_none() -> None:
    """Its length would be cut to a byte, and could be that of another topic."""
    data = encode_record(b"T", 0, 0, 1, 5, 0, 6, HOST, 7, HOST, 0, 0, b"body", b"")
    assert both(split_records)(data, 0, b"T" * 257, 0, True) == (0, [], [], [])


def test_long_responses_are_split_by_the_native_form() -> None:
    """It might leave everything to Python. This one is long enough to run beside other threads."""
    native = FORMS["split_records"].native
    assert native is not None
    data = encode_record(b"T", 0, 0, 1, 5, 0, 6, HOST, 7, HOST, 0, 0, b"b" * 1000, b"p") * 100
    end, *columns = native(data, 0, b"T", 0, True)
    assert end == len(data)
    assert list(map(len, columns)) == [100] * 3
    both(split_records)(data, 0, b"T", 0, True)
