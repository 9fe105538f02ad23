"""The state that a producer keeps for each topic: queues, connections, request templates.

Source: RocketMQ 4.6 TopicPublishInfo, DefaultMQProducerImpl tryToFindTopicPublishInfo.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from rocketpy.client.connections import PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.routes import PublishRoute, borrow_route, publish_route
from rocketpy.config import ProducerConfig
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.message.message import check_topic
from rocketpy.producer.send.request_template import SendTemplate
from rocketpy.producer.send.retry import RouteView
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.runtime.progress import Jobs


class TopicPublishInfo:
    """One topic of one producer.

    topic: as the application knows it, without its namespace. jobs: records look-ups.
    """

    def __init__(
        self, client: ClientInstance, group: str, topic: str, config: ProducerConfig, jobs: Jobs
    ) -> None:
        self.topic = topic
        self._jobs = jobs
        self.next_index: int = random.randrange(1 << 16)
        """Counts the sends, for round robin."""
        self.queue_connections: list[tuple[MessageQueue, PeerConnection]] = []
        """The queues in round-robin order, each with the connection to its broker; empty while no route is
        known.
        """
        self.connections: list[PeerConnection] = []
        """The connections to the masters in the route, one each."""
        self.may_batch: bool = not topic.startswith(RETRY_TOPIC_PREFIX)
        """Whether brokers accept batches for this topic."""
        name = check_topic(wrap(client.config.namespace, topic)) if client.config.namespace else topic
        self._default_queues = config.default_topic_queues
        template = partial(
            SendTemplate,
            group=group,
            topic=name,
            default_topic=config.default_topic,
            default_topic_queues=self._default_queues,
            signer=client.connections.signer,
        )
        self.single: SendTemplate = template(RequestCode.SEND_MESSAGE_V2)
        """Makes the requests with one message."""
        self.batch: SendTemplate = template(RequestCode.SEND_BATCH_MESSAGE)
        """Makes the requests with a batch."""
        self.reply: SendTemplate = template(RequestCode.SEND_REPLY_MESSAGE_V2)
        """Makes the requests with a reply."""
        self._client = client
        self._own = client.routes.entry(name)
        self._default = client.routes.entry(config.default_topic)
        self._route: PublishRoute | None = None
        self._refreshed_ms = float("-inf")
        self._error: RocketError | None = None
        self._is_new = False
        """Whether a name server has responded that it does not know the topic."""
        self._waiting: list[Callable[[], None]] = []
        self._pause: asyncio.TimerHandle | None = None
        self._own.changed.append(self._update_route)
        self._update_route()

    def close(self) -> None:
        """Stop following the route, and wake the callers that wait for it."""
        self._own.changed.remove(self._update_route)
        self._end_pause()
        self._wake(self._error)

    def flush(self) -> None:
        """Write out what the connections to its brokers have buffered."""
        for connection in self.connections:
            if connection.channel is not None:
                connection.channel.flush()

    @property
    def view(self) -> RouteView:
        """A snapshot of the route, for `retry.decide`."""
        return RouteView(self._route, self._refreshed_ms, self._error, self.topic)

    def connection(self, queue: MessageQueue) -> PeerConnection | None:
        """Return the connection to a queue's broker; None when the route does not name that broker."""
        address = self._route.masters.get(queue.broker_name) if self._route is not None else None
        return self._client.connections.get(address) if address is not None else None

    def request_route(self, then: Callable[[], None], at_ms: float = float("-inf")) -> None:
        """Request the route from a name server, then call `then`.

        Calls before the response share it. Their callbacks run in order, one directly after the other. at_ms:
        send the request not before this time; a route that becomes known earlier ends the wait.
        """
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return
        pause_ms = at_ms - self._client.now_ms()
        if pause_ms > 0:
            self._pause = self._client.tasks.call_later(pause_ms / 1000, self._request_own)
        else:
            self._request_own()

    def _request_own(self) -> None:
        self._pause = None
        self._client.routes.request(self._own, self._own_received)

    def _own_received(self, error: RocketError | None) -> None:
        if isinstance(error, RouteNotFound) and self._own.route is None:
            self._is_new = True
            self._client.routes.request(self._default, self._default_received)
        else:
            self._wake(error)

    def _default_received(self, error: RocketError | None) -> None:
        if self._own.route is None:
            self._update_route()
        if isinstance(error, RouteNotFound):
            error = RouteNotFound(
                f"no broker has topic {self.topic} or its template {self._default.name}; "
                "create the topic first, or set autoCreateTopicEnable=true at a broker"
            )
        self._wake(error)

    def _end_pause(self) -> bool:
        """Cancel the pause before a request; return whether there was one."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.cancel()
        return pause is not None

    def _wake(self, error: RocketError | None) -> None:
        self._error = error
        self._jobs.ended(f"the look-up of the route of topic {self.topic}", error)
        self._refreshed_ms = self._client.now_ms()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _update_route(self) -> None:
        """Use the topic's own route; for a topic that no broker has, the route of the default topic."""
        try:
            if self._own.route is not None:
                route = publish_route(self.topic, self._own.route)
            elif self._is_new and self._default.route is not None:
                route = borrow_route(self.topic, self._default.route, self._default_queues)
            else:
                return
        except RocketError as error:
            self._error = error
            return
        self._route = route
        by_name = {name: self._client.connections.get(address) for name, address in route.masters.items()}
        self.connections = list(by_name.values())
        self.queue_connections = [
            (queue, by_name[queue.broker_name]) for queue in route.queues if queue.broker_name in by_name
        ]
        if self.queue_connections and self._end_pause():
            self._wake(None)


class PublishInfoTable(dict[str, TopicPublishInfo]):
    """The topics of one producer. A look-up creates missing entries. RocketMQ: topicPublishInfoTable."""

    def __init__(self, client: ClientInstance, group: str, config: ProducerConfig) -> None:
        super().__init__()
        self._client = client
        self._group = group
        self._config = config
        self.jobs: Jobs = Jobs()
        """Look-ups of routes for sends."""

    def __missing__(self, topic: str) -> TopicPublishInfo:
        publish_info = self[topic] = TopicPublishInfo(
            self._client, self._group, topic, self._config, self.jobs
        )
        return publish_info

    def address(self, queue: MessageQueue) -> str | None:
        """Return the address of a queue's broker; None when no route has it."""
        publish_info = self.get(queue.topic)
        connection = publish_info.connection(queue) if publish_info is not None else None
        return connection.address if connection is not None else None
