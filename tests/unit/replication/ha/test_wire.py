"""Frames between master and slave: how a log is split into them, and which ones are rejected."""

import struct

import pytest

from rocketpy.errors import RemoteProtocolError
from rocketpy_broker.replication.ha.epochs import Epoch
from rocketpy_broker.replication.ha.wire import (
    CONTROL,
    Frame,
    FrameReader,
    Join,
    ReportReader,
    ack,
    encode_control,
    frames,
)

LARGEST_BODY = 4 << 20
LARGEST_NOTE = 1 << 20


def header(offset: int, size: int) -> bytes:
    return struct.pack(">qi", offset, size)


@pytest.mark.parametrize("size", [100, 101, 250])
def test_a_long_piece_of_the_log_is_split_into_frames(size: int) -> None:
    """A slave would write a part of the log at a wrong offset."""
    body = bytes(number % 251 for number in range(size))
    found = [one for one in FrameReader().feed(frames(4096, body, 100)) if isinstance(one, Frame)]
    assert [(one.offset, bytes(one.body or b"")) for one in found] == [
        (4096 + at, body[at : at + 100]) for at in range(0, size, 100)
    ]


@pytest.mark.parametrize(("offset", "size"), [(0, LARGEST_BODY), (7, 0), (CONTROL, LARGEST_NOTE)])
def test_the_largest_frames_are_awaited(offset: int, size: int) -> None:
    """A slave would disconnect from a master that sends valid frames."""
    found = list(FrameReader().feed(header(offset, size)))
    assert [frame.offset for frame in found] == ([] if offset == CONTROL else [offset])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, LARGEST_BODY + 1), (0, -1), (CONTROL - 1, 0), (CONTROL, LARGEST_NOTE + 1), (CONTROL, -1)],
)
def test_a_slave_rejects_impossible_frames(offset: int, size: int) -> None:
    """Bytes of an unknown server would make a slave wait for gigabytes."""
    with pytest.raises(RemoteProtocolError, match=f"{size} bytes"):
        list(FrameReader().feed(header(offset, size)))


@pytest.mark.parametrize("size", [-1, LARGEST_NOTE + 1])
def test_a_master_rejects_impossible_notes(size: int) -> None:
    """Bytes of an unknown client would fill the memory of a master."""
    reader = ReportReader()
    reader.uses_handshake = True
    with pytest.raises(RemoteProtocolError, match=f"{size} bytes"):
        list(reader.feed(header(CONTROL, size)))


def test_a_master_waits_for_the_rest_of_a_note_or_report() -> None:
    """A network that splits packets would end replication."""
    reader = ReportReader()
    reader.uses_handshake = True
    assert list(reader.feed(header(CONTROL, LARGEST_NOTE))) == []
    reader = ReportReader()
    reader.uses_handshake = True
    assert list(reader.feed(ack(300, 200)[:15])) == []
    assert list(reader.feed(ack(300, 200)[15:])) == [(300, 200)]


def test_a_report_before_the_log_is_rejected() -> None:
    """A slave could request bytes from a negative offset."""
    with pytest.raises(RemoteProtocolError, match="offset -2"):
        list(ReportReader().feed(struct.pack(">q", CONTROL - 1)))


def test_notes_and_reports_are_parsed_at_any_split() -> None:
    """A slave that writes quickly would be rejected as unknown."""
    note = Join(
        broker_name="b" * 300, broker_id=1, epochs=(Epoch(1, 0, "a"),), epoch_seen=1, max_offset=9,
        tail_bytes=0, tail_crc=0, nonce="n", proof="p",
    )  # fmt: skip
    data = encode_control(note) + ack(1, 2) + encode_control(note) + ack(3, 4)
    for size in (1, 7, 300, len(data)):
        reader = ReportReader()
        reader.uses_handshake = True
        found = [part for at in range(0, len(data), size) for part in reader.feed(data[at : at + size])]
        assert found == [note, (1, 2), note, (3, 4)]
