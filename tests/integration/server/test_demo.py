"""`make demo`: the result for every line of the file must be right, since new users run it first."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo import main
from examples.demo_check import differences, duplicates, message_of
from examples.demo_lines import MAX_BODY_BYTES, Line, read_lines
from examples.generate_events import write_events
from rocketpy import Message, MessageExt, MessageQueue
from rocketpy.protocol.message import properties, record

REPOSITORY = Path(__file__).parents[2]
LINES = [Line(1, b'{"type":"a"}', "a", ("k1", "k2")), Line(2, b"[1]"), Line(3, b'{"type":"b"}', "b")]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)


def received(message: Message, offset: int = 0) -> MessageExt:
    """The message that a consumer gets for a stored one."""
    text = dict(message.properties)
    if message.tags:
        text["TAGS"] = message.tags
    if message.keys:
        text["KEYS"] = " ".join(message.keys)
    host = record.host_bytes("127.0.0.1", 10911)
    stored = record.Record(
        topic=message.topic,
        queue_id=0,
        flag=0,
        queue_offset=offset,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=host,
        store_timestamp=1,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=message.body,
        properties=properties.encode(text).encode(),
    )
    return MessageExt(stored, MessageQueue(message.topic, "broker-a", 0), message.body)


def everything() -> list[MessageExt]:
    return [received(message_of("T", line), at) for at, line in enumerate(LINES)]


# -- the program --------------------------------------------------------------------------------


def test_demo_reports_bad_lines_and_sends_the_rest(tmp_path: Path) -> None:
    """One bad line in a newcomer's file would stop the demo, or vanish in silence."""
    file = tmp_path / "events.jsonl"
    write_events(file, 60)
    good = file.read_bytes().splitlines()
    huge = b'{"id":"huge","text":"' + b"x" * (5 << 20) + b'"}'
    file.write_bytes(
        b"\n".join([*good[:20], b"{not json}", b"", *good[20:40], huge, *good[40:], b"\xff\xfe"])
    )
    done = run_demo(str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    for number, reason in ((21, "not JSON"), (43, "a message may have"), (64, "not JSON")):
        assert re.search(rf"line {number} is not sent: .*{reason}", done.stderr), done.stderr
    assert (
        "OK: 60 messages came back as they were sent, also after the restart; 3 lines were not sent"
        in done.stdout
    )
    for row in (
        r"send (sync|async|oneway|batch) +15 ",
        r"read +60 ",
        r"read after a restart +60 ",
        r"commitlog +1 ",
    ):
        assert re.search(row, done.stdout), done.stdout


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file"),
        (b"", "nothing to send"),
        (b"\n \n", "nothing to send"),
        (b"oops\n", "line 1 is not sent"),
    ],
)
def test_the_demo_reports_errors_in_a_file(
    tmp_path: Path, content: bytes | None, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped file name would show a newcomer a traceback."""
    file = tmp_path / "events.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert main([str(file)]) == 2
    assert complaint in capsys.readouterr().err


# -- the comparison -----------------------------------------------------------------------------


def test_an_unchanged_message_has_no_differences() -> None:
    """The demo would report differences that do not exist."""
    assert differences(LINES, reversed(everything())) == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            Message("T", b'{"type":"A"}', tags="a", keys=["k1", "k2"], properties={"line": "1"}),
            "line 1: body",
        ),
        (Message("T", LINES[0].body, tags="b", keys=["k1", "k2"], properties={"line": "1"}), "line 1: tags"),
        (Message("T", LINES[0].body, tags="a", keys=["k1"], properties={"line": "1"}), "line 1: keys"),
        (Message("T", LINES[0].body, tags="a", keys=["k1", "k2"]), "was never sent"),
    ],
)
def test_a_changed_message_is_reported(changed: Message, complaint: str) -> None:
    """A broker that changes messages would pass the demo."""
    found = differences(LINES, [received(changed), *everything()[1:]])
    assert complaint in found[0]


def test_a_missing_message_is_reported() -> None:
    """A broker that loses messages would pass the demo."""
    assert differences(LINES, everything()[:2]) == ["line 3 is missing"]
    assert len(differences(LINES, [])) == 3


def test_duplicates_are_counted() -> None:
    """Messages that a retried send stored twice would go unreported."""
    assert duplicates(everything()) == 0
    assert duplicates([*everything(), *everything()[:2]]) == 2


# -- reading lines ------------------------------------------------------------------------------


def test_tags_and_keys_are_taken_from_the_event(tmp_path: Path) -> None:
    """A newcomer would search for an order by its number and find nothing."""
    events = [
        {"type": "order paid", "id": 7, "order_id": "o\x01 9", "note": "…"},
        {"kind": "k", "type": None},
        [1],
        5,
    ]
    file = tmp_path / "events.jsonl"
    file.write_text("\r\n".join(map(json.dumps, events)), encoding="utf-8")
    lines = read_lines(file)
    assert [(line.number, line.tags, line.keys) for line in lines.good] == [
        (1, "order_paid", ("7", "o__9")),
        (2, "k", ()),
        (3, None, ()),
        (4, None, ()),
    ]
    assert lines.good[2].body == b"[1]"


def test_a_line_of_the_greatest_size_is_sent(tmp_path: Path) -> None:
    """The limit would be off by one."""
    file = tmp_path / "events.jsonl"
    exact = b'"' + b"x" * (MAX_BODY_BYTES - 2) + b'"'
    file.write_bytes(exact + b"\r\n" + exact[:-1] + b'x"\n' + b"1")
    lines = read_lines(file)
    assert [line.number for line in lines.good] == [1, 3]
    assert [number for number, _ in lines.refused] == [2]
