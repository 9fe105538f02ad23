"""JSON as Java writes it, which no standard parser reads."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol import fastjson
from rocketpy.protocol.fastjson import MAX_DEPTH, ObjectKey
from tests.golden_data import extract_store, parsed, store_names
from tests.unit.filter.test_bounds import processor_s

QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}


class Key(msgspec.Struct, frozen=True, rename="camel"):
    """A message queue in a body."""

    broker_name: str
    queue_id: int


class Table(msgspec.Struct, rename="camel"):
    """A body with queues as keys, also in nested maps."""

    offsets: dict[Key, int]
    nested: list[dict[str, dict[Key, int]]] = []
    name: str | None = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"127.0.0.1:20010"}', {"0": "127.0.0.1:20010"}),
        ('{"offsetTable":{1:2, -3 : 4}}', {"offsetTable": {"1": 2, "-3": 4}}),
        ('{"a":"{1:2}",1:"\\",2:"}', {"a": "{1:2}", "1": '",2:'}),
        ('{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}', {ObjectKey(QUEUE): 5}),
        ("{'a':'b','c':'it\\'s'}", {"a": "b", "c": "it's"}),
        ("{a:1,$b_2:true,c:null,}", {"a": 1, "$b_2": True, "c": None}),
        ("['', -Infinity, 1.5e3, -7,]", ["", -math.inf, 1500.0, -7]),
        ("['\\u4e2d\\n\\x41\\\\ \\ud83d\\ude00 \\ud800']", ["中\nA\\ 😀 \ufffd"]),
        ("{ {1:{2:3}} : [ ] , 'x' : {} }", {ObjectKey({"1": {"2": 3}}): [], "x": {}}),
    ],
)
def test_texts_of_fastjson_are_read(text: str, value: Any) -> None:
    """QUIRKS 8: routes, offsets and statistics of a Java peer could not be read."""
    assert fastjson.loads(text.encode()) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "expected a value at 0"),
        (b"{0:1", "expected ',' or '}' at 4"),
        (b"{0 1}", "expected ':' at 3: '1}'"),
        (b"[1 " + b"2 " * 5000, "expected ',' or '\\]'"),
        (b"[1 2]", "expected ',' or '\\]'"),
        (b"['' a]", "expected ',' or '\\]'"),
        (b"{0:1 2:3}", "expected ',' or '}' at 5"),
        (b"{0:1 a:3}", "expected ',' or '}' at 5"),
        (b"{0:1 ~:3}", "expected ',' or '}' at 5"),
        (b"{,}", "expected a key"),
        (b"'abc", "unterminated string at 0"),
        (b"{0:nonsense}", "expected a value at 3"),
        (b"{0:1}}", "unexpected text after the value at 5"),
        (b'{0:"\xff"}', "not UTF-8 at byte 4"),
        (b"{0:" + b"9" * 5000 + b"}", "too many digits"),
        (b"['']" + b"[" * 40, "unexpected text after the value"),
        (b"{'':" * 40, "nested deeper than 32"),
        (b"[" * 100_000, "nested too deep"),
        (b"{'a':1}" + b" " * (1 << 20), "the limit is 1048576"),
    ],
)
def test_invalid_json_is_rejected_with_its_position(data: bytes, reason: str) -> None:
    """A damaged body would end the connection without a reason, or the process."""
    with pytest.raises(RemoteProtocolError, match=reason) as refused:
        fastjson.loads(data)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("begin", "end"), [("[", "]"), ("{a:", "}"), ("{", ":1}"), ("[{a:", "}]"), ("{{b:[", "]}:1}")]
)
def test_each_kind_of_nesting_is_limited(begin: str, end: str) -> None:
    """A body of 1 MB would exhaust the stack: of arrays, objects, or objects as keys."""
    levels = len(re.findall(r"[\[{]", begin))
    for depth in (MAX_DEPTH // levels, MAX_DEPTH // levels + 1):
        text = begin * depth + "''" + end * depth  # not standard JSON, because of its quotes
        if depth * levels <= MAX_DEPTH:
            fastjson.loads(text.encode())
        else:
            with pytest.raises(RemoteProtocolError, match=f"nested deeper than {MAX_DEPTH}"):
                fastjson.loads(text.encode())
    with pytest.raises(RemoteProtocolError, match="nested deeper than"):
        fastjson.loads(b"['a'," + begin.encode() * 100_000)


@pytest.mark.parametrize(
    ("start", "piece", "end"),
    [
        (b'{1:"', b'\\"', b""),
        (b'{1:"', b'\\"', b"\\"),
        (b"{", b",  ", b""),
        (b"{1", b" ", b""),
        (b"{", b"1", b""),
        (b'"', b'"', b""),
    ],
    ids=["escapes", "escapes and an end", "commas", "spaces", "digits", "quotes"],
)
def test_no_input_takes_quadratic_time(start: bytes, piece: bytes, end: bytes) -> None:
    """One hostile body would stop a broker for minutes."""

    def refuse(size: int) -> None:
        with pytest.raises(RemoteProtocolError):
            fastjson.loads(data[size])

    data = {size: start + piece * (size // len(piece)) + end for size in (4_001, 64_001)}
    # 16 times the input: linear takes 16 times as long, quadratic 256 times.
    assert processor_s(lambda: refuse(64_001)) < 64 * processor_s(lambda: refuse(4_001)) + 0.02


def test_typed_reading() -> None:
    """QUIRKS 8: the queue of a statistics entry would be text instead of a queue."""
    data = (
        b'{"offsets":{{"brokerName":"a","queueId":1}:5},"nested":[{"x":{{"brokerName":"b","queueId":2}:6}}]}'
    )
    table = Table(offsets={Key("a", 1): 5}, nested=[{"x": {Key("b", 2): 6}}])
    assert fastjson.decode(data, Table) == table
    assert fastjson.decode(fastjson.dumps(table), Table) == table
    assert fastjson.decode(b'{0:"5",1:6}', dict[int, int]) == {0: 5, 1: 6}
    assert fastjson.decode(b'["a"]', list[str]) == ["a"]


def test_a_field_of_the_wrong_type_is_named() -> None:
    """The log would not show which field of which body was wrong."""
    for data in (b'{"brokerName":"a","queueId":"x"}', b'{"brokerName":\'a\',"queueId":"x"}'):
        with pytest.raises(RemoteProtocolError, match=r"body is not a valid Key: .*queueId"):
            fastjson.decode(data, Key)


def test_written_texts() -> None:
    """QUIRKS 8: a Java peer would misread maps; it reads integer keys in quotes, and objects without."""
    assert fastjson.dumps({0: "a", 1: None}) == b'{"0":"a","1":null}'
    table = Table(offsets={Key("a", 1): 5, Key("a", 2): 6})
    assert fastjson.dumps(table) == (
        b'{"offsets":{{"brokerName":"a","queueId":1}:5,{"brokerName":"a","queueId":2}:6},"nested":[]}'
    )
    assert fastjson.dumps([{Key("a", 1): (1, {"x": 2})}]) == b'[{{"brokerName":"a","queueId":1}:[1,{"x":2}]}]'
    assert (
        fastjson.dumps({Key("a", 1): {1: "\u4e2d"}}).decode() == '{{"brokerName":"a","queueId":1}:{"1":"中"}}'
    )


@pytest.mark.parametrize("name", [n for n in store_names() if "config" in parsed(n)])
def test_recorded_config_files_are_read(name: str, tmp_path: Path) -> None:
    """QUIRKS 8: a broker started on a store of the Java one would lose its offsets and topics."""
    config = extract_store(name, tmp_path) / "config"
    read = {path.name: fastjson.loads(path.read_bytes()) for path in config.glob("*.json")}
    assert {"topics.json", "consumerOffset.json"} <= set(read)
    for file, theirs in parsed(name)["config"].items():
        if isinstance(theirs, dict) and file in read:
            assert read[file] == theirs
