"""Limits of a broker's registration. No I/O.

RocketMQ accepts any numbers and names. A route with 2,147,483,647 queues makes its clients build a list of
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocketpy.client.routing.routes import QUEUES_MAX
from rocketpy.errors import ConfigInvalid, UsageError
from rocketpy.protocol.bodies import TopicConfig
from rocketpy.transport import Address
from rocketpy_broker.namesrv.route_table import BrokerIdentity

_NAME_CHARACTERS_MAX: Final = 255
_PERM_MAX: Final = 7
_BROKER_ID_MIN: Final = -1
"""Id of a DLedger peer without a role."""


def check_registration(
    broker: BrokerIdentity, ha_address: str, topics: Iterable[TopicConfig], filter_servers: Iterable[str]
) -> None:
    """Raise UsageError for a registration with a value that no broker sends."""
    for what, name in (("cluster", broker.cluster), ("broker", broker.name)):
        _check_name(what, name)
    if broker.broker_id < _BROKER_ID_MIN:
        raise UsageError(f"broker {broker.name} has the id {broker.broker_id}; the lowest allowed id is -1")
    for address in (broker.address, *filter_servers, *([ha_address] if ha_address else [])):
        _check_address(broker.name, address)
    for topic in topics:
        _check_topic(topic)


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= _NAME_CHARACTERS_MAX or not name.isprintable() or " " in name:
        raise UsageError(
            f"{what} {name[:200]!r} has {len(name)} characters; 1 to {_NAME_CHARACTERS_MAX} printable ones "
            "without blanks are allowed"
        )


def _check_address(broker_name: str, address: str) -> None:
    try:
        Address.parse(address)
    except ConfigInvalid as error:
        raise UsageError(f"broker {broker_name}: {str(error)[:300]}") from None


def _check_topic(topic: TopicConfig) -> None:
    name = topic.topic_name
    _check_name("topic", name)
    for count in (topic.read_queue_nums, topic.write_queue_nums):
        if not 0 <= count <= QUEUES_MAX:
            raise UsageError(f"topic {name} has {count} queues; 0 to {QUEUES_MAX} are allowed")
    if not 0 <= topic.perm <= _PERM_MAX:
        raise UsageError(f"topic {name} has the permission {topic.perm}; 0 to {_PERM_MAX} are allowed")
