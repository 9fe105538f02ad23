"""Encoded values are decoded unchanged: properties, records, batches, ids, bodies with any content."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketpy.protocol.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rocketpy.protocol.java import string_hash, utf8_hash
from rocketpy.protocol.message import properties, record
from rocketpy.protocol.message.batch import BatchMessage, decode_batch, encode_batch
from rocketpy.protocol.message.compression import compress_if_worth, decompress
from rocketpy.protocol.message.message_id import (
    UniqueIdGenerator,
    decode_message_id,
    message_id,
)
from rocketpy.protocol.message.record import Record
from tests.unique_ids import unique_id_time_ms

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
VALUE = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(VALUE, VALUE, max_size=8)
PIECES = st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"TAGS\x01", b"\xff"]), max_size=20)
BODY = st.binary(max_size=300)
TOPIC_NAME = st.text("abcXYZ_%-|09", min_size=1, max_size=20)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record the format can hold."""
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    flags = draw(st.integers(0, 0x7FF)) & ~0x30
    return Record(
        topic=draw(st.text(st.characters(codec="utf-8"), max_size=30)),
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=flags | 0x10 * born_v6 | 0x20 * store_v6,
        born_timestamp=draw(INT64),
        born_host=draw(st.binary(min_size=20, max_size=20) if born_v6 else st.binary(min_size=8, max_size=8)),
        store_timestamp=draw(INT64),
        store_host=draw(
            st.binary(min_size=20, max_size=20) if store_v6 else st.binary(min_size=8, max_size=8)
        ),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body=draw(BODY),
        properties=draw(BODY),
    )


@given(PROPERTIES)
def test_properties(given_properties: dict[str, str]) -> None:
    """QUIRKS 21: a property would be lost or changed between producer and consumer."""
    text = properties.encode(given_properties)
    assert properties.decode(text) == given_properties == properties.decode(text.encode())
    for name, value in given_properties.items():
        assert properties.find(text.encode(), name.encode()) == value.encode()


@given(PIECES, st.sampled_from([b"a", b"TAGS", b"aa", b""]))
def test_find_agrees_with_decode(pieces: list[bytes], name: bytes) -> None:
    """QUIRKS 21: a malformed text would be filtered by another tag than its consumer sees."""
    raw = b"".join(pieces)
    found = properties.find(raw, name)
    assert (found if found is None else found.decode("utf-8", "replace")) == properties.decode(raw).get(
        name.decode()
    )


@given(st.lists(records(), max_size=4))
def test_records(written: list[Record]) -> None:
    """A message would change in the commit log, or on its way to the consumer."""
    written = [one for one in written for _ in range(2)]  # those of one topic behind each other
    data = b"".join(map(record.encode, written))
    read = record.decode_all(data)
    assert [msgspec.structs.replace(r, size=0, body_crc=0) for r in read] == written
    at = 0
    for whole in read:
        view = record.peek(memoryview(data), at, check_crc=True)
        assert (view.size, view.topic, view.properties) == (whole.size, whole.topic, whole.properties)
        assert data[view.body_at : view.body_at + view.body_length] == whole.body
        at += view.size
    assert at == len(data)


@given(st.lists(st.builds(BatchMessage, INT32, BODY, BODY), max_size=6))
def test_batches(messages: list[BatchMessage]) -> None:
    """A message of a batch would be cut at the wrong place."""
    assert decode_batch(encode_batch(messages)) == messages


@given(st.sampled_from([8, 20]).flatmap(lambda size: st.binary(min_size=size, max_size=size)), INT64)
def test_broker_message_ids(host: bytes, offset: int) -> None:
    """A message could not be found by the id its sender was given."""
    assert decode_message_id(message_id(host, offset)) == (host, offset)


@given(st.integers(0, 4_102_444_800_000), st.integers(0, 27 * 86_400_000))
def test_time_of_client_ids(made_ms: int, age_ms: int) -> None:
    """QUIRKS 26: a look-up by client id would begin at the wrong day."""
    unique_id = UniqueIdGenerator(b"\x7f\0\0\1").next(made_ms)
    assert unique_id_time_ms(unique_id, made_ms + age_ms) == made_ms


@given(TEXT)
def test_java_hash(text: str) -> None:
    """QUIRKS 44: a tag filter would drop messages that it should pass."""
    units = text.encode("utf-16-be")
    expected = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        expected = (expected * 31 + high * 256 + low) % 2**32
    assert string_hash(text) % 2**32 == expected
    assert -(2**31) <= string_hash(text) < 2**31
    assert utf8_hash(text.encode()) == string_hash(text)


@given(BODY, st.integers(1, 500))
def test_compression(body: bytes, times: int) -> None:
    """A large body would arrive changed, or not at all."""
    sent, flag = compress_if_worth(body * times)
    assert decompress(sent, flag) == body * times


@given(
    st.builds(
        SendMessageRequestHeader,
        producer_group=TEXT, topic=TEXT, default_topic=TEXT, default_topic_queue_nums=INT32, queue_id=INT32,
        sys_flag=INT32, born_timestamp=INT64, flag=INT32, properties=st.none() | TEXT,
        reconsume_times=st.none() | INT32, unit_mode=st.booleans(), batch=st.booleans(),
    )
)  # fmt: skip
def test_headers(header: SendMessageRequestHeader) -> None:
    """QUIRKS 3, 19: a field of a send request would reach the broker as another value."""
    v2 = SendMessageRequestHeaderV2(**{name: getattr(header, name) for name in header.__struct_fields__})
    for each in (header, v2):
        text = each.ext_fields()
        assert msgspec.convert(text, type(each), strict=False) == each
        assert msgspec.json.decode(msgspec.json.encode(text), type=type(each), strict=False) == each


@given(TEXT, INT32, INT64, INT64)
def test_pull_headers(group: str, queue_id: int, offset: int, version: int) -> None:
    """QUIRKS 32: a consumer would read from another offset than it requested."""
    header = PullMessageRequestHeader(
        consumer_group=group, topic="t", queue_id=queue_id, queue_offset=offset, max_msg_nums=32, sys_flag=0,
        commit_offset=-1, suspend_timeout_millis=15_000, sub_version=version,
    )  # fmt: skip
    assert msgspec.convert(header.ext_fields(), PullMessageRequestHeader, strict=False) == header


JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_standard_json(value: object) -> None:
    """A body of a peer that is not Java could not be read."""
    assert fastjson.loads(fastjson.dumps(value)) == value


@given(JSON)
def test_the_tolerant_parser_reads_standard_json_alike(value: object) -> None:
    """QUIRKS 8: one odd key in a body would change the values beside it."""
    text = b"{{}:1,'x':" + fastjson.dumps(value) + b"}"
    assert fastjson.loads(text) == {fastjson.ObjectKey(): 1, "x": value}


@given(st.dictionaries(INT64, INT64, max_size=8), st.dictionaries(TEXT, TEXT, max_size=4))
def test_bare_integer_keys(offsets: dict[int, int], texts: dict[str, str]) -> None:
    """QUIRKS 8: consumer offsets of a Java broker would be lost, or a text with a colon in it be changed."""
    bare = b"{" + b",".join(b"%d:%d" % item for item in offsets.items()) + b"}"
    data = b'{"texts":' + fastjson.dumps(texts) + b',"offsets":' + bare + b"}"
    assert fastjson.loads(data) == {"texts": texts, "offsets": {str(k): v for k, v in offsets.items()}}


@given(
    st.lists(
        st.builds(
            TopicConfig,
            topic_name=TOPIC_NAME, read_queue_nums=INT32, write_queue_nums=INT32, perm=st.integers(0, 7),
            topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
        ),
        max_size=6,
    ),
    st.builds(DataVersion, timestamp=INT64, counter=INT64),
    st.lists(TEXT, max_size=3),
    st.booleans(),
)  # fmt: skip
def test_registrations(
    topics: list[TopicConfig], version: DataVersion, servers: list[str], compressed: bool
) -> None:
    """QUIRKS 12: a name server would know other topics than the broker has."""
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            topic_config_table={topic.topic_name: topic for topic in topics}, data_version=version
        ),
        filter_server_list=servers,
    )
    assert RegisterBrokerBody.decode(body.encode(compressed), compressed) == body
