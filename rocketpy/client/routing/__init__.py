"""Routes: which queues of which brokers serve a topic, and which of them is next. Pure values."""

from rocketpy.client.routing.latency import BrokerLatencies
from rocketpy.client.routing.routes import (
    QUEUES_MAX,
    PublishRoute,
    borrow_route,
    check_route,
    publish_route,
    subscribe_queues,
)
from rocketpy.client.routing.selection import select_queue

__all__ = [
    "QUEUES_MAX",
    "BrokerLatencies",
    "PublishRoute",
    "borrow_route",
    "check_route",
    "publish_route",
    "select_queue",
    "subscribe_queues",
]
