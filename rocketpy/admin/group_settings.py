"""Settings of consumer groups, as applications see them and as brokers send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, TypedDict, cast

import msgspec

from rocketpy.config import check_number
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol import fastjson
from rocketpy.protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a consumer group on one broker. Source: RocketMQ SubscriptionGroupConfig."""

    enabled: bool = field(default=True, metadata={"java": "consumeEnable"})
    """Whether the group may consume."""
    broadcast: bool = field(default=True, metadata={"java": "consumeBroadcastEnable"})
    """Whether the group may broadcast: each member receives all messages."""
    max_retries: int = field(default=16, metadata={"java": "retryMaxTimes"})
    """How often a message is redelivered before it becomes a dead letter."""
    retry_queues: int = field(default=1, metadata={"java": "retryQueueNums"})
    """The number of queues of the group's retry topic that get retries. With 0, a message that is sent back
    is dropped."""
    broker_id: int = field(default=0, metadata={"java": "brokerId"})
    """The id of the broker to read from: 0 is the master."""
    broker_id_when_slow: int = field(default=1, metadata={"java": "whichBrokerWhenConsumeSlowly"})
    """The id of the broker to read from when the group is far behind."""
    notify_changes: bool = field(default=True, metadata={"java": "notifyConsumerIdsChangedEnable"})
    """Whether members are notified when other members join or leave."""


_JAVA_NAMES: Final[dict[str, str]] = {one.name: one.metadata["java"] for one in fields(GroupSettings)}
"""Settings of a group -> their names in RocketMQ's SubscriptionGroupConfig."""


class GroupChanges(TypedDict, total=False):
    """Settings to change; see `GroupSettings`."""

    enabled: bool
    broadcast: bool
    max_retries: int
    retry_queues: int
    broker_id: int
    broker_id_when_slow: int
    notify_changes: bool


def check_existing(group: str, retry_queues: int, existing: Mapping[str, GroupSettings]) -> None:
    """Raise ConfigInvalid if an existing group has fewer retry queues than it should be created with."""
    for broker, known in existing.items():
        if retry_queues > known.retry_queues:
            raise ConfigInvalid(
                f"group {group} was not created with {retry_queues} retry queues: it exists on broker "
                f"{broker} with {known.retry_queues}. Creating a group never changes an existing one; use "
                "AdminClient.groups.alter or rocketpy group alter"
            )


def fields_of(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings with the names that brokers use. Raises ConfigInvalid."""
    for name, value in settings.items():
        if name not in _JAVA_NAMES:
            raise ConfigInvalid(f"there is no group setting {name!r}; choose from: {', '.join(_JAVA_NAMES)}")
        if not isinstance(value, bool):
            check_number(name, cast(int, value), 0)
    return {_JAVA_NAMES[name]: value for name, value in settings.items()}


def group_settings(config: SubscriptionGroupConfig) -> GroupSettings:
    """Return the settings that users see."""
    found = msgspec.to_builtins(config)
    return GroupSettings(**{name: found[java] for name, java in _JAVA_NAMES.items()})


def raw_group(body: bytes, name: str) -> dict[str, object] | None:
    """Return the settings of a group, including any that only newer brokers know; None without the group."""
    SubscriptionGroupWrapper.decode(body)  # raises if the body is not a table of groups
    config: dict[str, object] | None = fastjson.loads(body)["subscriptionGroupTable"].get(name)
    # RocketMQ 5.x accepts attributes only as changes ("+key": value), and keeps those that are not sent.
    return (
        None if config is None else {field: value for field, value in config.items() if field != "attributes"}
    )
