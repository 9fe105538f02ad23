"""The route of one topic as a producer sees it: its own, or the one that a new topic borrows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketpy.client.connections import PeerConnection
from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.routes import PublishRoute, borrow_route, publish_route
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.message.message import check_topic
from rocketpy.producer.send.request_template import SendTemplate
from rocketpy.producer.send.retry import RouteView
from rocketpy.protocol.bodies import RETRY_TOPIC_PREFIX, MessageQueue
from rocketpy.protocol.codes import RequestCode


class TopicPublishInfo:
    """One topic of one producer.

    queue_connections: the queues in their turn, each with the link to its broker; empty while no
    route is known. links: those to the brokers.
    turn: the next one's number. single, batch, reply: the frames of its requests.
    topic: as the application knows it, without its namespace. may_batch: whether a broker
    may take batches for this topic.
    """

    __slots__ = (
        "_asked_ms",
        "_client",
        "_default_queues",
        "_error",
        "_is_new",
        "_own",
        "_pause",
        "_route",
        "_template",
        "_waiting",
        "batch",
        "links",
        "may_batch",
        "queue_connections",
        "reply",
        "single",
        "topic",
        "turn",
    )

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        topic: str,
        default_topic: str,
        default_queues: int,
        turn: int,
    ) -> None:
        self.topic = topic
        self.turn = turn
        self.queue_connections: list[tuple[MessageQueue, PeerConnection]] = []
        self.links: list[PeerConnection] = []
        self.may_batch = not topic.startswith(RETRY_TOPIC_PREFIX)
        name = check_topic(wrap(client.config.namespace, topic)) if client.config.namespace else topic
        self.single, self.batch, self.reply = (
            SendTemplate(code, group, name, default_topic, default_queues, client.connections.signer)
            for code in (
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_BATCH_MESSAGE,
                RequestCode.SEND_REPLY_MESSAGE_V2,
            )
        )
        self._client = client
        self._default_queues = default_queues
        self._own = client.topic(name)
        self._template = client.topic(default_topic)
        self._route: PublishRoute | None = None
        self._asked_ms = float("-inf")
        self._error: RocketError | None = None
        self._is_new = False  # a name server has said that it does not know the topic
        self._waiting: list[Callable[[], None]] = []
        self._pause: asyncio.TimerHandle | None = None
        self._own.changed.append(self._adopt)
        self._adopt()

    def close(self) -> None:
        """Take no more notice of the route; those who wait for it are told."""
        self._own.changed.remove(self._adopt)
        self._end_pause()
        self._answered(self._error)

    @property
    def view(self) -> RouteView:
        """What is known now."""
        return RouteView(self._route, self._asked_ms, self._error)

    def link(self, queue: MessageQueue) -> PeerConnection | None:
        """The way to a queue's broker; None when the route does not know it."""
        address = self._route.masters.get(queue.broker_name) if self._route is not None else None
        return self._client.connections.get(address) if address is not None else None

    def request_route(self, then: Callable[[], None], at_ms: float = float("-inf")) -> None:
        """Call `then` after a name server was asked again; in order, with nothing in between.

        at_ms: not before this time, unless the route is learned otherwise. Who comes meanwhile waits as long:
        it must not overtake.
        """
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return
        pause_ms = at_ms - self._client.now_ms()
        if pause_ms > 0:
            self._pause = asyncio.get_running_loop().call_later(
                pause_ms / 1000, self._client.tasks.run, self._ask
            )
        else:
            self._ask()

    def _ask(self) -> None:
        self._pause = None
        self._client.request_route(self._own, self._asked_own)

    def _asked_own(self, error: RocketError | None) -> None:
        if isinstance(error, RouteNotFound) and self._own.route is None:
            self._is_new = True
            self._client.request_route(self._template, self._asked_template)
        else:
            self._answered(error)

    def _asked_template(self, error: RocketError | None) -> None:
        if self._own.route is None:
            self._adopt()
        if isinstance(error, RouteNotFound):
            error = RouteNotFound(
                f"no broker has topic {self.topic}, nor {self._template.name}, from which it would be made"
            )
        self._answered(error)

    def _end_pause(self) -> bool:
        """Whether there was one."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.cancel()
        return pause is not None

    def _answered(self, error: RocketError | None) -> None:
        self._error = error
        self._asked_ms = self._client.now_ms()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _adopt(self) -> None:
        """Use the topic's own route; for one that no broker has, what the default topic's lends."""
        try:
            if self._own.route is not None:
                route = publish_route(self.topic, self._own.route)
            elif self._is_new and self._template.route is not None:
                route = borrow_route(self.topic, self._template.route, self._default_queues)
            else:
                return
        except RocketError as error:
            self._error = error
            return
        self._route = route
        links = {name: self._client.connections.get(address) for name, address in route.masters.items()}
        self.links = list(links.values())
        self.queue_connections = [
            (queue, links[queue.broker_name]) for queue in route.queues if queue.broker_name in links
        ]
        if self.queue_connections and self._end_pause():
            self._answered(None)
