"""Entries, blanks and index units that no healthy ledger holds; where entries go."""

import pytest

from rocketpy.errors import RecordCorrupt, TornTail
from rocketpy_broker.replication.dledger.core.entry import (
    Entry,
    decode_entry,
    decode_index_unit,
    encode_blank,
    encode_entry,
    encode_index_unit,
    next_pos,
)

ENTRY = Entry.of(5, 2, 4096, b"a body of 20 bytes..")
DATA = encode_entry(ENTRY)


@pytest.mark.parametrize("length", range(len(DATA)))
def test_an_entry_that_was_cut_is_torn(length: int) -> None:
    """A partial entry left by a crash would pass for a whole one."""
    with pytest.raises(TornTail):
        decode_entry(DATA[:length], 0, 4096)


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"\x00\x00\x00\x02"), (4, b"\x00\x00\x00\x2f"), (8, b"\xff" * 8), (24, b"\x01"), (44, b"\x7f")],
)
def test_a_damaged_header_is_seen(at: int, value: bytes) -> None:
    """Damaged entries would be served (I9)."""
    with pytest.raises(RecordCorrupt):
        decode_entry(DATA[:at] + value + DATA[at + len(value) :] + bytes(64), 0, 4096)


@pytest.mark.parametrize("data", [bytes(64), encode_blank(7) + bytes(64)])
def test_zeros_and_impossible_blanks_are_rejected(data: bytes) -> None:
    """Recovery would never end in the unwritten part of a file."""
    with pytest.raises(RecordCorrupt):
        decode_entry(data, 0, 0)


@pytest.mark.parametrize(
    ("end", "size", "pos"),
    [(0, 100, 0), (900, 100, 1000), (900, 92, 900), (900, 93, 1000), (1000, 100, 1000), (0, 1000, 0)],
)
def test_an_entry_leaves_room_for_a_blank(end: int, size: int, pos: int) -> None:
    """The rest of a file could be too short for a blank entry."""
    assert next_pos(end, size, 1000) == pos


def test_a_damaged_index_unit_is_seen() -> None:
    """An entry would be looked up at a position that a torn write invented."""
    unit = encode_index_unit(ENTRY)
    with pytest.raises(TornTail):
        decode_index_unit(unit[:31])
    with pytest.raises(RecordCorrupt):
        decode_index_unit(b"\x00\x00\x00\x03" + unit[4:])
