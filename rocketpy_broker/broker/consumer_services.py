"""Services for consumers in one broker: creates and connects them and their handlers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from operator import attrgetter
from typing import NamedTuple

from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import MessageQueue, RequestMode, TopicRouteData
from rocketpy.protocol.headers import BrokerFeature, PullMessageRequestHeader
from rocketpy.protocol.message.record import decode
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.assignments import AssignmentHandler
from rocketpy_broker.handlers.client_calls import ClientCallHandler
from rocketpy_broker.handlers.clients import ClientHandler
from rocketpy_broker.handlers.consume_stats import ConsumeStatsHandler
from rocketpy_broker.handlers.pull.long_polling import HoldTable
from rocketpy_broker.handlers.pull.offsets import OffsetHandler
from rocketpy_broker.handlers.pull.pull import OffsetMovedEvent, PullHandler, Queue, offset_moved_message
from rocketpy_broker.handlers.pull.pull_checks import ExpressionPolicy, PullChecks
from rocketpy_broker.handlers.pull.query import QueryHandler
from rocketpy_broker.security.guard import AccessGuard
from rocketpy_broker.security.required_rights import rights_to_read
from rocketpy_broker.services.cluster.topic_queues import TopicQueues
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.locks import QueueLocks
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.pop.order import PopOrder
from rocketpy_broker.services.runtime_info import DayTotals, runtime_info
from rocketpy_broker.services.slices import Slices
from rocketpy_broker.services.stats import SAMPLE_MS, BrokerStats, PutCounts
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import system_clock
from rocketpy_broker.store.queue.dispatch import Arrivals
from rocketpy_broker.store.upkeep.driver import StoreDriver

log = logging.getLogger("rocketpy.broker.consumers")

_PULL_SWEEP_S = 0.1
_CLIENT_SWEEP_S = 10.0


class BrokerContext(NamedTuple):
    """Objects that the parts of one broker share."""

    config: BrokerConfig
    store: MessageStore
    driver: StoreDriver
    topics: TopicTable
    tasks: Tasks
    access: AccessGuard | None
    """None without access control."""


class ConsumerServices:
    """Groups, clients, offsets, locks and held pulls of one broker.

    Call `load` and `start` before the first request, and `close` when the broker stops.
    """

    def __init__(self, context: BrokerContext) -> None:
        config, store, driver, topics, tasks, access = context
        self._config, self._store, self._driver, self._topics, self._tasks, self._access = context
        settings = config.store.root / "config"
        self.offsets = ConsumerOffsets(
            settings / "consumerOffset.json", offsets_max=config.consume.offsets_max
        )
        self.groups = SubscriptionGroupTable(
            settings / "subscriptionGroup.json",
            tasks,
            config.consume,
            retry_queues_max=config.topics.queues_max,
        )
        self.modes = RequestModeTable(settings / "messageRequestMode.json", tasks)
        self.order = PopOrder(settings / "consumerOrderInfo.json", self.offsets)
        self.clients = ClientRegistry(lambda channel, size: channel.memory.add("subscriptions", size))
        self.locks = QueueLocks()
        self.holds: HoldTable[Queue] = HoldTable(lambda channel, size: channel.memory.add("pulls", size))
        driver.polled_queues = self.holds.queues
        self.stats = BrokerStats(config.cluster_name)
        self.puts = PutCounts(store)
        self.booted_ms = system_clock()
        self._days = DayTotals()
        self.slices = Slices(tasks, _now_ms)
        self._calls = ClientCallHandler(
            store,
            topics,
            self.clients,
            self.offsets,
            slices=self.slices,
            broker_name=config.name,
            is_shared=self._is_shared,
            on_reset=self._reset,
        )
        self.on_reset: Callable[[str, str, int], None] | None = None
        """Called with topic, group and queue id after an operator has reset an offset."""
        self.in_flight: Callable[[str, str, int], int] = lambda *_: 0
        """Returns how many messages of a topic, group and queue id are popped and not acknowledged."""
        self.has_popped: Callable[[str, str], bool] = lambda *_: False
        """See `CheckPoints.has_popped`."""
        self._moved: dict[tuple[str, str, int], OffsetMovedEvent] = {}
        self._periodic: list[PeriodicCall] = []
        self._host = bytes(8)
        expressions = ExpressionPolicy(config.consume, self.slices)
        self.pull_checks = PullChecks(store, topics, self.groups, self.clients, expressions, config)
        self._client_handler = ClientHandler(
            self.clients,
            self.groups,
            topics,
            self.locks,
            expressions,
            config.consume,
            slices=self.slices,
            now_ms=_now_ms,
            owner=attrgetter("remote_host") if access is None else access.account_of,
            features=(
                BrokerFeature.DEAD_LETTER_REASONS,
                *((BrokerFeature.TIMER, BrokerFeature.POP) if config.timers.enabled else ()),
            ),
        )
        self._pull_handler = PullHandler(
            store,
            self.pull_checks,
            self.groups,
            self.offsets,
            config.consume,
            holds=self.holds,
            stats=self.stats,
            slices=self.slices,
            now_ms=_now_ms,
            owner=self._owner_of,
            on_offset_moved=self._note_moved_offset,
            still_allowed=None if access is None else access.deny_if_revoked,
        )

    def handlers(
        self, address: str, route: Callable[[str], Awaitable[TopicRouteData | None]]
    ) -> Sequence[object]:
        """Return the handlers. address: registered address of the broker. route: see `Registrar.route`."""
        return (
            self._pull_handler,
            self._client_handler,
            OffsetHandler(self._store, self.offsets, self.clients, self._topics, self.slices),
            QueryHandler(
                self._store,
                self.clients.subscription,
                slices=self.slices,
                may_read=self._may_read,
                topics=self._topics,
            ),
            ConsumeStatsHandler(
                self._store,
                self._topics,
                self.groups,
                self.clients,
                self.offsets,
                self.stats,
                broker_name=self._config.name,
                address=address,
                slices=self.slices,
                now_ms=_now_ms,
                sampling=self._sampling,
                in_flight=self.in_flight,
            ),
            self._calls,
            AssignmentHandler(
                self._topics,
                self.groups,
                self.clients,
                self.modes,
                TopicQueues(self._config.consume, self._tasks, route=route, now_ms=_now_ms),
                self._config.consume,
            ),
        )

    @property
    def closed(self) -> Sequence[Callable[[Channel], None]]:
        """Listeners for closed channels."""
        return self._pull_handler.channel_closed, self._client_handler.channel_closed

    def load(self) -> None:
        """Load offsets, groups, request modes and pops in order; the store is open. Raises StoreDamaged."""
        self.offsets.load()
        self.groups.load()
        self.modes.load()
        self.order.load()
        self.puts = PutCounts(self._store)

    def start(self, host: bytes) -> None:
        """Start the timers of held pulls, clients and locks. host: address of the broker, as in records."""
        self._host = host
        every = self._tasks.every
        self._periodic = [
            every(_PULL_SWEEP_S, self._pull_handler.sweep, "sweep of held pulls"),
            every(_CLIENT_SWEEP_S, self._sweep_clients, "sweep of clients and locks"),
            every(SAMPLE_MS / 1000, self._sample, "sampling of counters"),
        ]
        self._sample()

    def arrived(self, arrivals: Arrivals) -> None:
        """Respond to held pulls of queues with new messages: an ArrivalListener of the store."""
        self._pull_handler.arrived(arrivals)

    async def save(self) -> None:
        """Save changed offsets and groups. Failures are logged."""
        # Groups first: a crash between the two must not leave saved offsets of a group that is not saved.
        await self.groups.save()
        await self.offsets.save()
        await self.order.save()

    def close(self) -> None:
        """Stop the timers."""
        for call in self._periodic:
            call.stop()

    def end_slices(self) -> None:
        """End all work that reads the store in slices, and start none for new messages."""
        self._store.set_arrival_listener(None)
        self.slices.close()

    def runtime_info(self) -> dict[str, str]:
        """Return the runtime information for operators."""
        return runtime_info(
            self._store,
            self._config,
            self.stats,
            self.puts,
            self._days,
            now_ms=_now_ms(),
            booted_ms=self.booted_ms,
            is_active=self._store.failure is None,
        )

    def _owner_of(self, channel: Channel) -> str:
        """Return the account of a connection, or its host if it has none."""
        account = "" if self._access is None else self._access.account_of(channel)
        return account or channel.remote_host

    def _may_read(self, channel: Channel, record: bytes) -> bool:
        if self._access is None:
            return True
        return self._access.permits(channel, rights_to_read(decode(record, check_crc=False)))

    def _is_shared(self, topic: str, group: str) -> bool:
        """Whether a group pops the messages of a topic, so that its offsets are those of the broker."""
        mode = self.modes.find(topic, group)
        has_popped = self.has_popped(topic, group) or self.order.has(topic, group)
        return has_popped or (mode is not None and mode.mode is RequestMode.POP)

    def _reset(self, topic: str, group: str, queue_id: int) -> None:
        self.order.remove(topic, group, queue_id)
        if self.on_reset is not None:
            self.on_reset(topic, group, queue_id)

    # -- timers -------------------------------------------------------------------------------

    async def _sweep_clients(self) -> None:
        self._client_handler.drop_inactive()
        await self._client_handler.drop_expired_locks()

    def _sample(self) -> asyncio.Future[None]:
        return self.slices.run_upkeep(self._sampling())

    def _sampling(self) -> Generator[None, None, None]:
        yield from self.stats.sampling(_now_ms(), self.puts)
        self._days.update(time.localtime()[:3], self.puts.total, self.stats.pulled_total)

    def _note_moved_offset(self, header: PullMessageRequestHeader, offset: int) -> None:
        """Store an OFFSET_MOVED_EVENT message when no run of sends is open (QUIRKS 50)."""
        queue = MessageQueue(header.topic, self._config.name, header.queue_id)
        if not self._moved:
            self._tasks.call_soon(self._store_events)
        self._moved[header.consumer_group, header.topic, header.queue_id] = OffsetMovedEvent(
            consumer_group=header.consumer_group,
            message_queue=queue,
            offset_new=offset,
            offset_request=header.queue_offset,
        )

    def _store_events(self) -> None:
        moved, self._moved = self._moved, {}
        try:
            for event in moved.values():
                self._store.append(offset_moved_message(event, self._host, system_clock()))
            self._store.write_out()
        except RocketError as error:
            log.warning("storing %d OFFSET_MOVED_EVENT messages failed: %s", len(moved), error)
        self._driver.schedule_dispatch()


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
