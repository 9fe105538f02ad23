"""Derives the queues of a topic from a name server's route, and selects the next queue.

Source: RocketMQ 4.6 MQClientInstance topicRouteData2TopicPublishInfo and ..SubscribeInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketpy.errors import RemoteProtocolError, RocketError
from rocketpy.protocol.bodies import (
    MASTER_ID,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    MessageQueue,
    QueueData,
    TopicRouteData,
)

QUEUES_MAX: Final = 65_536
"""Queues of a topic on one broker; a route with more is rejected. RocketMQ has no limit."""
_ROUTE_QUEUES_MAX: Final = 262_144
"""Queues of a topic on all brokers together."""
_DIGITS_MAX: Final = len(str(QUEUES_MAX))


RouteCallback = Callable[[RocketError | None], None]
"""Called with None when a route was fetched, or with the error."""


class CachedRoute:
    """The cached route of a topic."""

    __slots__ = ("changed", "error", "name", "route", "waiting")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.route: TopicRouteData | None = None
        """The route of the last response that had one."""
        self.error: RocketError | None = None
        """Why the last request got no route, or None."""
        self.waiting: list[RouteCallback] = []
        """Callbacks of the current request."""
        self.changed: list[Callable[[], None]] = []
        """Called after each change of the route."""


@dataclass(frozen=True, slots=True)
class PublishRoute:
    """Where messages of a topic can be sent."""

    topic: str
    queues: tuple[MessageQueue, ...]
    """In round-robin order."""
    masters: Mapping[str, str]
    """Broker name to the address of its master."""
    ordered: bool = False
    """Whether the queues come from the topic's order configuration, so that their number is independent of
    failed brokers."""
    brokers_without_master: frozenset[str] = frozenset()
    """Names of writable brokers whose master has failed, or is being elected."""


def check_route(topic: str, route: TopicRouteData) -> None:
    """Raise RemoteProtocolError for a route with invalid or huge numbers of queues.

    RocketMQ's clients accept any number, and build a list of 2,147,483,647 queues.
    """
    total = 0
    for data in route.queue_datas:
        for count in (data.read_queue_nums, data.write_queue_nums):
            if not 0 <= count <= QUEUES_MAX:
                raise RemoteProtocolError(
                    f"the route of {topic} has {count} queues on broker {data.broker_name[:200]}; "
                    f"0 to {QUEUES_MAX} are accepted"
                )
        total += max(data.read_queue_nums, data.write_queue_nums)
    if total > _ROUTE_QUEUES_MAX:
        raise RemoteProtocolError(
            f"the route of {topic} has {total} queues; up to {_ROUTE_QUEUES_MAX} are accepted"
        )
    if route.order_topic_conf:
        order_counts(topic, route.order_topic_conf)


def publish_route(topic: str, route: TopicRouteData) -> PublishRoute:
    """Return the writable queues of `topic` whose broker has a master.

    With an order configuration, all of its queues are returned, even those of failed brokers, because the
    queue of a message must not change. Raises RemoteProtocolError for a malformed order configuration.
    """
    masters = _masters(route)
    if route.order_topic_conf:
        return PublishRoute(topic, tuple(_ordered_queues(topic, route.order_topic_conf)), masters, True)
    queues = tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=_broker_name)
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    )
    brokers_without_master = frozenset(
        data.broker_name
        for data in route.queue_datas
        if data.perm & PERM_WRITE and data.write_queue_nums and data.broker_name not in masters
    )
    return PublishRoute(topic, queues, masters, brokers_without_master=brokers_without_master)


def borrow_route(topic: str, template: TopicRouteData, queues_max: int) -> PublishRoute:
    """Return the route of a topic that does not exist yet: the brokers that create topics from `template`.

    queues_max: maximum number of queues on a broker (4 in RocketMQ); the read queues of the template limit it
    too.
    """
    datas = [
        QueueData(
            broker_name=data.broker_name,
            read_queue_nums=(count := min(queues_max, data.read_queue_nums)),
            write_queue_nums=count,
            perm=data.perm,
        )
        for data in template.queue_datas
        if data.perm & PERM_INHERIT
    ]
    return publish_route(topic, TopicRouteData(queue_datas=datas, broker_datas=template.broker_datas))


def subscribe_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the readable queues, sorted by broker name and queue id."""
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=_broker_name)
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    )


def usable_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the writable queues that consumers read, of brokers with a master."""
    readable = frozenset(subscribe_queues(topic, route))
    return tuple(queue for queue in publish_route(topic, route).queues if queue in readable)


def select_queue(queues: Sequence[MessageQueue], index: int, avoid_broker: str | None = None) -> MessageQueue:
    """Return the next queue, on another broker than `avoid_broker` if possible.

    queues: not empty. index: any number; the caller increments it for each call.
    Source: RocketMQ 4.6 TopicPublishInfo selectOneMessageQueue.
    """
    count = len(queues)
    if avoid_broker is not None:
        for step in range(count):
            queue = queues[(index + step) % count]
            if queue.broker_name != avoid_broker:
                return queue
    return queues[index % count]


def member_to_read(addresses: Mapping[int, str]) -> int:
    """Return the id of the broker to read from: the master, else the slave with the lowest id.

    A DLedger broker without a role registers with id -1; its log may be outdated, so it is chosen last.
    """
    return min(addresses, key=lambda broker_id: (broker_id < MASTER_ID, broker_id))


def _broker_name(data: QueueData) -> str:
    return data.broker_name


def _masters(route: TopicRouteData) -> dict[str, str]:
    return {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if MASTER_ID in data.broker_addrs
    }


def _ordered_queues(topic: str, order_topic_conf: str) -> list[MessageQueue]:
    return [
        MessageQueue(topic, broker_name, queue_id)
        for broker_name, count in order_counts(topic, order_topic_conf)
        for queue_id in range(count)
    ]


def order_counts(topic: str, order_topic_conf: str) -> list[tuple[str, int]]:
    """Parse an order configuration such as ``broker-a:4;broker-b:2`` into broker names and queue counts.

    Raises RemoteProtocolError when it is malformed or has too many queues.
    """
    counts: list[tuple[str, int]] = []
    for part in filter(None, order_topic_conf.split(";")):
        broker_name, _, text = part.partition(":")
        count = int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else -1
        counts.append((broker_name, count))
        if not 0 <= count <= QUEUES_MAX:
            raise RemoteProtocolError(
                f"order configuration of {topic} is {order_topic_conf[:200]!r}; broker:count;... is "
                f"expected, with up to {QUEUES_MAX} queues of a broker"
            )
    if sum(count for _, count in counts) > _ROUTE_QUEUES_MAX:
        raise RemoteProtocolError(f"order configuration of {topic} has more than {_ROUTE_QUEUES_MAX} queues")
    return counts
