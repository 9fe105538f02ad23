"""The archive of rocketpy export: what it accepts as records, and as its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid, RecordCorrupt, RocketError
from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy_cli.archives.files import Archive, count_records, file_name, read_messages


def record(offset: int, body: bytes = b"body") -> bytes:
    """A record of queue 1."""
    host = host_bytes("127.0.0.1", 1)
    return encode_record(b"T", 1, 7, offset, 900, 1, 11, host, 12, host, 0, 0, body, b"a\x01b\x02")


def test_records_are_counted() -> None:
    """A response that skips an offset would count a message too many."""
    assert count_records(record(3) + record(5), 3, 9) == 2
    assert count_records(b"", 3, 9) == 0


@pytest.mark.parametrize(
    "data",
    [
        record(2) + record(3),
        record(3) + record(3),
        record(8) + record(9),
        record(3)[:-1],
        record(3) + b"\x00",
        bytes(100),
    ],
)
def test_other_records_are_refused(data: bytes) -> None:
    """An archive could get messages twice, of another range, or bytes that nobody can read."""
    with pytest.raises(RecordCorrupt):
        count_records(data, 3, 9)


@pytest.mark.parametrize("read_bytes", [4, 20, 200, 1 << 20])
def test_a_file_is_read_in_pieces(tmp_path: Path, read_bytes: int) -> None:
    """A record longer than a piece, or cut by its end, could be lost."""
    bodies = [b"x" * size for size in (1, 500, 3, 70)]
    path = tmp_path / "file"
    data = b"".join(record(offset, body) for offset, body in enumerate(bodies))
    path.write_bytes(data + b"after the end")
    found, position = [], 0
    while position < len(data):
        part = read_messages(path, position, len(data), read_bytes)
        position += sum(message.size for message in part)
        found += part
    assert [message.body for message in found] == bodies
    assert {(message.flag, message.sys_flag, message.born_timestamp) for message in found} == {(7, 1, 11)}


def test_a_short_file_is_damaged(tmp_path: Path) -> None:
    """An import of a file that lost its end would never finish."""
    path = tmp_path / "file"
    path.write_bytes(record(0)[:-5])
    with pytest.raises(RocketError, match="is damaged at byte 0: no whole record"):
        read_messages(path, 0, len(record(0)), 1 << 20)


def test_one_command_at_a_time(tmp_path: Path) -> None:
    """A scheduled export that overlaps with itself would write messages twice."""
    with (
        Archive(tmp_path).locked(),
        pytest.raises(ConfigInvalid, match="in use by another"),
        Archive(tmp_path).locked(),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "was not written by rocketpy"),
        ('{"format": 2, "topic": "T", "cluster": "", "queues": []}', "has format 2"),
        (
            '{"topic":"T","cluster":"","queues":[{"file":"../x","broker_name":"b","queue_id":0,"begin":0,"end":0,"next_offset":0}]}',
            "is not the name of a file",
        ),
    ],
)
def test_a_foreign_manifest(tmp_path: Path, text: str, says: str) -> None:
    """A file of another program or version would be taken for an archive, or name files elsewhere."""
    (tmp_path / "manifest.json").write_text(text, "utf-8")
    with pytest.raises(ConfigInvalid, match=says):
        Archive(tmp_path).manifest()


def test_names_of_files() -> None:
    """The name of a broker could lead out of the directory, or two brokers share a file."""
    assert file_name(3, "../broker a", 7) == "003-.._broker_a-7.records"
