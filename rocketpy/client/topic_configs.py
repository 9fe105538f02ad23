"""TopicConfigs: reads and writes the settings of topics at brokers.

Source: RocketMQ 4.6 MQAdminImpl createTopic, UpdateTopicSubCommand. Differs: creating a topic leaves existing
topics unchanged; there, it replaces their settings.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from rocketpy.errors import BrokerError, ConfigInvalid
from rocketpy.message.message import DEFAULT_TOPIC
from rocketpy.protocol.bodies import TopicConfig, TopicConfigSerializeWrapper
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import CreateTopicRequestHeader, Header
from rocketpy.protocol.remoting.command import Command

CallBroker = Callable[[str | None, str, int, Header | None], Awaitable[Command]]
"""Sends a request with a code and a header to a master; returns the successful response.

The arguments begin with its address, None while the broker has no master, and the name of the broker.
"""


Attributes = Mapping[str, str | None]
"""Changes of attributes of a topic: values by name; None removes one."""
NO_CHANGES: Final[Attributes] = MappingProxyType({})
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9._-]+")


class Permission(IntFlag):
    """What clients may do with a topic. Source: RocketMQ PermName."""

    INHERIT = 1
    """Sends may create other topics with the settings of this one."""
    WRITE = 2
    READ = 4


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic on one broker."""

    read_queues: int
    """The number of queues that consumers read."""
    write_queues: int
    """The number of queues that producers write to."""
    perm: Permission
    """What clients may do with it."""
    ordered: bool
    """Whether it is an ordered topic: its queues do not change while a broker is down."""
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Its attributes, such as ``message.type``; only brokers of rocketpy and of RocketMQ 5 have them."""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Reads and writes the settings of topics at brokers. Names of topics include the namespace."""

    call: CallBroker

    async def find(self, address: str | None, broker: str, name: str) -> TopicConfig | None:
        """Return the settings of a topic at a broker; None without the topic.

        Brokers before 5.x can only return the settings of all topics.
        """
        response = await self.call(address, broker, RequestCode.GET_ALL_TOPIC_CONFIG, None)
        return TopicConfigSerializeWrapper.decode(response.body).topic_config_table.get(name)

    async def put(
        self, address: str | None, broker: str, config: TopicConfig, attributes: Attributes = NO_CHANGES
    ) -> None:
        """Create a topic at a broker, or replace all of its settings but the attributes.

        attributes: to set, or to remove with None. Raises ConfigInvalid for a broker without attributes.
        """
        header = _header(config, attributes)
        await self.call(address, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await self._check_kept(address, broker, config.topic_name, attributes)

    async def _check_kept(self, address: str | None, broker: str, name: str, attributes: Attributes) -> None:
        """Raise ConfigInvalid if a broker has ignored attributes, as RocketMQ does before 5.0."""
        if attributes:
            found = await self.find(address, broker, name)
            known = {} if found is None else found.attributes
            if any(known.get(key) != value for key, value in attributes.items()):
                raise ConfigInvalid(
                    f"broker {broker} ignored the attributes of topic {name}: RocketMQ before 5.0 has none"
                )

    async def create(
        self,
        address: str | None,
        broker: str,
        config: TopicConfig,
        default_topic: str = DEFAULT_TOPIC,
        attributes: Attributes = NO_CHANGES,
    ) -> TopicConfig | None:
        """Create a topic at a broker that lacks it.

        Returns its settings if it exists nevertheless, because a send or another client has just created it;
        then it is unchanged. Brokers of RocketMQ replace its settings.
        """
        header = replace(_header(config, attributes), default_topic=default_topic, only_if_missing=True)
        try:
            await self.call(address, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_EXIST_ALREADY:
                raise
            return await self.find(address, broker, config.topic_name)
        await self._check_kept(address, broker, config.topic_name, attributes)
        return None


def check_attributes(attributes: Attributes) -> None:
    """Raise ConfigInvalid for a name or value that a request cannot contain."""
    for name, value in attributes.items():
        if not _ATTRIBUTE.fullmatch(name) or (value is not None and not _ATTRIBUTE.fullmatch(value)):
            raise ConfigInvalid(
                f"attribute {name!r} is {value!r}; names and values have letters, digits, dots, - and _ only"
            )


def _header(config: TopicConfig, attributes: Attributes) -> CreateTopicRequestHeader:
    changes = (
        f"-{name}" if value is None else f"+{name}={value}" for name, value in sorted(attributes.items())
    )
    return CreateTopicRequestHeader(
        topic=config.topic_name,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(changes) or None,
    )


def topic_settings(config: TopicConfig) -> TopicSettings:
    """Return the settings that users see."""
    perm = Permission(config.perm)
    return TopicSettings(
        config.read_queue_nums, config.write_queue_nums, perm, config.order, config.attributes
    )


def unchanged_topics(found: Mapping[str, TopicConfig | None]) -> dict[str, TopicSettings]:
    """Return the settings at the brokers that have a topic. found: the settings by broker."""
    return {broker: topic_settings(config) for broker, config in found.items() if config is not None}


def check_existing(topic: str, wanted: TopicConfig, existing: Mapping[str, TopicConfig]) -> None:
    """Raise ConfigInvalid if an existing topic has fewer queues than it should be created with.

    topic: its name without the namespace. existing: its settings by broker. A topic that should be ordered
    must be ordered there, too.
    """
    for broker, config in existing.items():
        reads, writes = config.read_queue_nums, config.write_queue_nums
        if wanted.write_queue_nums > min(reads, writes):
            raise ConfigInvalid(
                f"topic {topic} was not created with {wanted.write_queue_nums} queues: it exists on broker "
                f"{broker} with {reads} queues to read and {writes} to write. Creating a topic never changes "
                "an existing one; use AdminClient.topics.alter or rocketpy topic alter"
            )
        if wanted.order and not config.order:
            raise ConfigInvalid(
                f"topic {topic} was not created as an ordered topic: it exists on broker {broker} and is not "
                "ordered. Creating a topic never changes an existing one; use AdminClient.topics.alter or "
                "rocketpy topic alter"
            )
