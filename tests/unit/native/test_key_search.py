"""Look-ups by key in both forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.native import FORMS
from rocketpy.protocol.java import string_hash
from rocketpy.protocol.message.record import encode_record
from rocketpy_broker.store.index.index_hash import index_hash, positive_hash
from rocketpy_broker.store.queue.key_search import match_key
from tests.native_forms import both, needs_native

pytestmark = needs_native
V4, V6 = b"\x7f\0\0\1\0\0\x12\x34", bytes(20)
NAMES = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"UNIQ_KEYS", b"KEY", b"WAIT", b""])
VALUES = st.sampled_from([b"a", b"a b", b"b a", b" a", b"", b"a\x01b", b"long value \x01 a", b"\xff"])
PROPERTIES = st.lists(
    st.one_of(st.builds(lambda name, value: name + b"\x01" + value, NAMES, VALUES), VALUES), max_size=5
).map(b"\x02".join)
TOPICS = st.sampled_from(["T", "", "TT", "Thema ü"])
KEYS = st.sampled_from([b"a", b"b", b"", b"a b", b"c"])


def record(topic: str, properties: bytes, body: bytes, sys_flag: int) -> bytes:
    """A record at offset 5000, stored at 1000 ms."""
    born, host = (V6 if sys_flag & flag else V4 for flag in (0x10, 0x20))
    return encode_record(
        topic.encode(), 3, 0, 40, 5000, sys_flag, 9, born, 1000, host, 0, 0, body, properties
    )


@given(
    TOPICS, PROPERTIES, st.binary(max_size=8), st.sampled_from([0, 0, 0, 1, 0x10, 0x20, 0x30]), TOPICS, KEYS,
    st.sampled_from([(0, 2000), (1000, 1000), (0, 999), (1001, 2000)]), st.sampled_from([5000, 5000, 0, -1]),
)  # fmt: skip
def test_both_forms_find_the_same_records(
    topic: str, properties: bytes, body: bytes, sys_flag: int, wanted: str, key: bytes,
    times: tuple[int, int], offset: int,
) -> None:  # fmt: skip
    """A search by key would miss messages, or return those of other keys."""
    stored = record(topic, properties, body, sys_flag)
    both(match_key)(stored, offset, wanted.encode(), key, *times)


@given(
    st.sampled_from([0, 0x10]),
    st.integers(0, 200),
    st.binary(min_size=1, max_size=4),
    st.booleans(),
    PROPERTIES,
)
def test_damaged_records_are_found_in_neither_form(
    sys_flag: int,
    at: int,
    value: bytes,
    cut: bool,
    properties: bytes,
) -> None:
    """A panic would end the connection that searches."""
    stored = record("T", properties, b"body", sys_flag)
    changed = stored[:at] if cut else (stored[:at] + value + stored[at + len(value) :])
    both(match_key)(changed, 5000, b"T", b"a", 0, 2000)


@given(st.text(max_size=40) | st.just("T"), st.text(max_size=200), st.binary(max_size=20))
def test_both_forms_have_the_same_hash(topic: str, key: str, other: bytes) -> None:
    """A look-up would miss all messages of a key."""
    try:
        names = topic.encode(), key.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return
    assert both(index_hash)(*names) == positive_hash(string_hash(f"{topic}#{key}"))
    both(index_hash)(other, other)


@given(st.binary(max_size=200))
def test_other_bytes_are_a_record_in_neither_form(data: bytes) -> None:
    """The index may point anywhere in a damaged store."""
    assert both(match_key)(data, 5000, b"T", b"a", 0, 2000) == 0


@pytest.mark.parametrize(("key", "expected"), [(b"a", 2), (b"b", 2), (b"id", 2), (b"c", 1)])
def test_usual_records_use_the_native_form(key: bytes, expected: int) -> None:
    """It might leave everything to Python."""
    native = FORMS["match_key"].native
    assert native is not None
    stored = record("T", b"KEYS\x01a b\x02UNIQ_KEY\x01id\x02WAIT\x01true\x02", b"body", 0)
    assert native(stored, 5000, b"T", key, 0, 2000) == expected
