"""Bodies about the configuration of topics and groups, and a broker's registration.

The compressed registration body (header field `compressed`) is not JSON, but zlib over the following parts,
with big-endian lengths (QUIRKS 12)::

    i32 length, DataVersion as JSON
    i32 number of topics, then for each: i32 length, "name readQueues writeQueues perm TAGFILTER"
    i32 length, JSON array of filter servers

It lacks sysFlag and order of the topics. Source: RocketMQ RegisterBrokerBody, TopicConfig encode.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final, Self

from msgspec import field

from rocketpy.errors import RemoteProtocolError
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies.base import Body, always_encoded
from rocketpy.protocol.headers.base import Int32, Int64
from rocketpy.protocol.message.compression import inflate

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of ordered topics in the KV config of name servers. Source: RocketMQ NamesrvUtil."""
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups that exist on every broker. Source: RocketMQ SubscriptionGroupManager."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

_LENGTH: Final = Struct(">i")
_ZLIB_LEVEL: Final = 9


class DataVersion(Body, kw_only=True):
    """The version of a table."""

    counter: Int64 = always_encoded(0)
    """Number of changes."""
    timestamp: Int64 = always_encoded(0)
    """Ms of the last change."""

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change. now_ms: time of the change, in ms since 1970."""
        return DataVersion(timestamp=now_ms, counter=self.counter + 1)


class TopicConfig(Body, kw_only=True):
    """A topic of one broker. Source: RocketMQ TopicConfig."""

    topic_name: str
    read_queue_nums: Int32 = always_encoded(16)
    write_queue_nums: Int32 = always_encoded(16)
    perm: Int32 = always_encoded(6)
    """4 read, 2 write, 1 inherit."""
    topic_filter_type: str = always_encoded("SINGLE_TAG")
    """SINGLE_TAG or MULTI_TAG."""
    topic_sys_flag: Int32 = always_encoded(0)
    order: bool = always_encoded(False)
    attributes: dict[str, str] = field(default_factory=dict)
    """Such as message.type; RocketMQ 5. In requests that change them, each name begins with + or -."""

    def to_text(self) -> str:
        """Return the text of the compressed registration body, which lacks sysFlag, order and attributes.

        A name server of RocketMQ 4.6.0 takes exactly these five words.
        """
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
            f"{self.topic_filter_type}"
        )

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """Parse the text of `to_text`: five words, three of them numbers. Raises RemoteProtocolError.

        RocketMQ 5 adds the attributes as JSON.
        """
        try:
            name, read_queues, write_queues, perm, filter_type, *attributes = text.split(" ", 5)
            return TopicConfig(
                topic_name=name,
                read_queue_nums=int(read_queues),
                write_queue_nums=int(write_queues),
                perm=int(perm),
                topic_filter_type=filter_type,
                attributes=fastjson.decode(attributes[0].encode(), dict[str, str]) if attributes else {},
            )
        except ValueError as error:
            raise RemoteProtocolError(
                f"registration body: {text[:200]!r} is not a topic configuration: {error}"
            ) from error


class CreateTopicListRequestBody(Body, kw_only=True):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (18). Source: RocketMQ 5.3.3 CreateTopicListRequestBody."""

    topic_config_list: list[TopicConfig] = always_encoded([])


class TopicConfigSerializeWrapper(Body, kw_only=True):
    """The response to GET_ALL_TOPIC_CONFIG, and topics.json."""

    topic_config_table: dict[str, TopicConfig] = always_encoded({})
    """By topic name."""
    data_version: DataVersion = field(default_factory=DataVersion)
    deleted_topics: dict[str, int] = field(default_factory=dict)
    """Only in rocketpy; topic -> end of the commit log when it was deleted last. Records of the topic before
    it are in no queue, also if the topic was created again."""


class RegisterBrokerBody(Body, kw_only=True):
    """The body of REGISTER_BROKER: JSON, or compressed if the header field `compressed` is true."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = always_encoded([])

    def encode(self, compressed: bool = False) -> bytes:
        """Encode the body. The header's body_crc32 is `checksum.crc32` of the result (QUIRKS 11)."""
        if not compressed:
            return fastjson.dumps(self)
        wrapper = self.topic_config_serialize_wrapper
        topics = [topic.to_text().encode() for topic in wrapper.topic_config_table.values()]
        pieces = [
            _with_length(wrapper.data_version.encode()),
            _LENGTH.pack(len(topics)),
            *map(_with_length, topics),
            _with_length(fastjson.dumps(self.filter_server_list)),
        ]
        return zlib.compress(b"".join(pieces), _ZLIB_LEVEL)

    @classmethod
    def decode(cls, data: bytes, compressed: bool = False) -> Self:
        """Decode a body. Raises RemoteProtocolError, which names the invalid part."""
        if not compressed:
            return fastjson.decode(data, cls)
        plain = inflate(data)
        version, offset = _take(plain, 0)
        topics, offset = _take_topics(plain, offset)
        servers, _ = _take(plain, offset)
        return cls(
            topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
                topic_config_table=topics, data_version=DataVersion.decode(version)
            ),
            filter_server_list=fastjson.decode(servers, list[str]),
        )


class TopicList(Body, kw_only=True):
    """Names of topics."""

    topic_list: list[str] = always_encoded([])
    broker_addr: str | None = None
    """Address of any broker, in the response to GET_SYSTEM_TOPIC_LIST_FROM_NS, or of this one, in that to
    QUERY_TOPICS_BY_CONSUMER."""


class SubscriptionGroupConfig(Body, kw_only=True):
    """A consumer group of one broker. Source: RocketMQ SubscriptionGroupConfig."""

    group_name: str
    consume_enable: bool = always_encoded(True)
    consume_from_min_enable: bool = always_encoded(True)
    consume_broadcast_enable: bool = always_encoded(True)
    retry_queue_nums: Int32 = always_encoded(1)
    retry_max_times: Int32 = always_encoded(16)
    broker_id: Int64 = always_encoded(0)
    which_broker_when_consume_slowly: Int64 = always_encoded(1)
    notify_consumer_ids_changed_enable: bool = always_encoded(True)


class SubscriptionGroupList(Body, kw_only=True):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225).

    Source: RocketMQ 5.3.3 SubscriptionGroupList.
    """

    group_config_list: list[SubscriptionGroupConfig] = always_encoded([])


class GroupForbidden(Body, kw_only=True):
    """The response to UPDATE_AND_GET_GROUP_FORBIDDEN (353). Source: RocketMQ 5.3.3 GroupForbidden."""

    topic: str
    group: str
    readable: bool


class SubscriptionGroupWrapper(Body, kw_only=True):
    """The response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, and subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = always_encoded({})
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, Int32]] = field(default_factory=dict)
    """Group -> topic -> bits of what it may not do: 4 read. Since RocketMQ 5."""


def _with_length(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _take_topics(data: bytes, offset: int) -> tuple[dict[str, TopicConfig], int]:
    count, offset = _take_length(data, offset)
    topics = {}
    for _ in range(count):
        text, offset = _take(data, offset)
        topic = TopicConfig.from_text(text.decode("utf-8", "replace"))
        topics[topic.topic_name] = topic
    return topics, offset


def _take(data: bytes, offset: int) -> tuple[bytes, int]:
    length, offset = _take_length(data, offset)
    if length > len(data) - offset:
        left = len(data) - offset
        raise RemoteProtocolError(
            f"registration body: {length} bytes are announced at {offset}, but {left} follow"
        )
    return data[offset : offset + length], offset + length


def _take_length(data: bytes, offset: int) -> tuple[int, int]:
    if len(data) - offset < _LENGTH.size:
        raise RemoteProtocolError(f"registration body: it ends at {len(data)}, inside a length at {offset}")
    (length,) = _LENGTH.unpack_from(data, offset)
    if length < 0:
        raise RemoteProtocolError(f"registration body: negative length {length} at {offset}")
    return length, offset + _LENGTH.size
