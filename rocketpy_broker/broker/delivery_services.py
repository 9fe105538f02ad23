"""Services for messages that need more than an append: delayed, timed, transactional and returned messages,
and replies. Creates and connects them and the handlers of sends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import cast

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import PERM_READ, PERM_WRITE
from rocketpy.protocol.message.record import Record
from rocketpy.runtime.tasks import PeriodicCall
from rocketpy.transport import Channel
from rocketpy_broker.broker.consumer_services import BrokerContext, ConsumerServices
from rocketpy_broker.handlers.pop.ack import AckHandler
from rocketpy_broker.handlers.pop.peek import PeekHandler
from rocketpy_broker.handlers.pop.polling import PollingHandler
from rocketpy_broker.handlers.pop.pop import PopHandler
from rocketpy_broker.handlers.pop.run import PopRun
from rocketpy_broker.handlers.pull.long_polling import HoldTable
from rocketpy_broker.handlers.send.recall import RecallHandler
from rocketpy_broker.handlers.send.reply import ReplyHandler
from rocketpy_broker.handlers.send.response import ParkResponses, SendResponses
from rocketpy_broker.handlers.send.response_waiters import CommitWaiters
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.handlers.send.send_back import SendBackHandler
from rocketpy_broker.handlers.send.timed import TimedSends
from rocketpy_broker.handlers.send.transactions import TransactionHandler
from rocketpy_broker.security.required_rights import rights_to_end_transaction
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.metadata.topics import own_topic
from rocketpy_broker.services.pop.scheduler import PopService
from rocketpy_broker.services.timers.messages import TIMER_TOPIC
from rocketpy_broker.services.timers.scheduler import TimerService
from rocketpy_broker.services.transactions.transaction_check import TransactionChecker
from rocketpy_broker.services.transactions.transactions import TransactionService
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.queue.dispatch import Arrivals

_SWEEP_S = 0.1


class DeliveryServices:
    """Delayed messages, timers and transactions of one broker, and the handlers of all sends.

    Call `load` and `start` before the first request, `run` on a master, and `close` after the last request
    while the store is open.
    """

    def __init__(self, context: BrokerContext, consumers: ConsumerServices) -> None:
        self._config, self._store, self._driver, self._topics, self._tasks, self._access = context
        self._consumers = consumers
        self.delay = DelayService(
            self._store,
            self._driver,
            self._config.store.root / "config" / "delayOffset.json",
            self._tasks,
            queue_to_deliver=self._topics.queue_to_deliver,
            interval_ms=self._config.delay_offset_interval_ms,
        )
        timers = self._config.timers
        self.timers = TimerService(
            self._store,
            self._driver,
            self._config.store.root,
            self._tasks,
            queue_to_deliver=self._topics.queue_to_deliver,
            window_slots=lambda: timers.window_of(self._config.store.retention.reserved_hours),
            log_file_bytes=timers.log_file_bytes,
            save_interval_ms=timers.save_interval_ms,
        )
        self._driver.cleaner.keeps_expired = self.timers.needs_files
        self._has_timers = timers.enabled
        self.pop = PopService(
            self._store,
            self._driver,
            consumers.offsets,
            self._topics,
            self._tasks,
            cluster_name=self._config.cluster_name,
            broker_name=self._config.name,
            config=self._config.pop,
            find_group=consumers.groups.find,
            timers=self.timers,
        )
        self._polling: PollingHandler | None = None
        self._sweeping: PeriodicCall | None = None
        self._checker: TransactionChecker | None = None
        self._transactions: TransactionService | None = None

    def load(self) -> None:
        """Load the progress of delayed messages and timers; the store is dispatched.

        Raises StoreError, StoreDamaged.
        """
        self.delay.load()
        if self._has_timers:
            self.timers.load()

    @property
    def halves(self) -> int:
        """Number of transactional messages without a commit or rollback; 0 on a slave, which ends none."""
        if self._transactions is None or self._store.rejection(Reason.SLAVE) is not None:
            return 0
        with contextlib.suppress(StoreError):  # the last known number
            self._transactions.catch_up()
        return len(self._transactions.table.open)

    def start(
        self,
        host: bytes,
        responses: SendResponses,
        park: ParkResponses | None,
        commits: CommitWaiters | None = None,
    ) -> tuple[SendHandler, Sequence[object]]:
        """Return the send handler, and all handlers that store messages.

        host: address of the broker, as in records. responses, park, commits: see `SendHandler`.
        """
        config, store, delay = self._config, self._store, self.delay

        def written() -> None:
            if park is not None:
                park([], store.max_physical_offset)  # consumers must not read it before its flush
            self._driver.schedule_dispatch()

        self._transactions = transactions = TransactionService(store, self._consumers.offsets, host)
        if commits is None:  # a DLedger leader loads them later
            transactions.load()
        send = SendHandler(
            store,
            self._topics,
            config,
            responses,
            schedule_dispatch=self._driver.schedule_dispatch,
            find_group=self._consumers.groups.find,
            delays=delay.levels,
            on_delayed=delay.message_appended,
            timed=TimedSends(config, lambda: self.timers.waiting, self.timers.waiting_in_slot),
            park=park,
            commits=commits,
        )
        send_back = SendBackHandler(
            self._topics,
            config,
            send,
            find_group=self._consumers.groups.find,
            delays=delay.levels,
            on_delayed=delay.message_appended,
            on_send_back=lambda group, topic: self._consumers.stats.count_sent_back(topic, group),
        )
        reply = ReplyHandler(send, config.send, store_host=host, channel_of=self._producer)
        self._checker = TransactionChecker(
            store,
            self._driver,
            transactions,
            config.transactions,
            self._tasks,
            channels=self._producers,
            make_topic=self._make_topic,
            on_written=written,
        )
        delay.on_delivered = self.timers.on_delivered = self.pop.on_revived = written
        self.pop.points.host = host
        pop_run = PopRun(store, self.pop, send, self._tasks)
        pops = PopHandler(
            store,
            self._topics,
            self._consumers.pull_checks,
            self._consumers.offsets,
            self.pop,
            self._consumers.order,
            pop_run,
            config,
            stats=self._consumers.stats,
            now_ms=lambda: asyncio.get_running_loop().time() * 1000,
        )
        self._polling = polling = PollingHandler(
            pops,
            config.pop,
            holds=HoldTable(_count_held, lambda: config.pop.held_per_queue_max),
            tasks=self._tasks,
            slices=self._consumers.slices,
            now_ms=pops.now_ms,
            write=send.end_of_buffer,
            still_allowed=None if self._access is None else self._access.deny_if_revoked,
        )
        acks = AckHandler(
            store,
            self._topics,
            self.pop,
            self._consumers.order,
            pop_run,
            config,
            on_freed=polling.changed,
        )
        self._consumers.on_reset = self._reset
        self._consumers.in_flight = self.in_flight
        self._consumers.has_popped = self.pop.points.has_popped
        self._driver.polled_topics = polling.topics
        self._sweeping = self._tasks.every(_SWEEP_S, polling.sweep, "sweep of held pops")
        ends = TransactionHandler(transactions, send)
        recall = RecallHandler(store, config, send, on_recall=self.timers.recall_appended)
        of_pops = (polling, PeekHandler(pops, store), acks) if self._has_timers else ()
        return send, (send, send_back, reply, ends, recall, *of_pops)

    @property
    def pops_held(self) -> int:
        """Number of pops and notifications that wait for messages."""
        return 0 if self._polling is None else len(self._polling.holds)

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of a queue a group has popped, and not acknowledged."""
        in_order = self._consumers.order.in_flight(topic, group, queue_id)
        return in_order + self.pop.points.in_flight.counts.get((topic, group, queue_id), 0)

    def _reset(self, topic: str, group: str, queue_id: int) -> None:
        """Begin to pop from the new offset of a group, and serve waiting pops."""
        self.pop.points.reset(topic, group, queue_id)
        if self._polling is not None:
            self._polling.changed(topic, group, queue_id)

    def channel_closed(self, channel: Channel) -> None:
        """Drop the held pops of a closed channel."""
        if self._polling is not None:
            self._polling.channel_closed(channel)

    def _make_topic(self, name: str) -> None:
        if self._topics.get(name) is None:
            self._topics.add([own_topic(name, 1, PERM_READ | PERM_WRITE)])

    def run(self) -> None:
        """Start to deliver delayed messages and timers, and check transactions, on a master.

        Raises StoreError. A second call starts what did not start in the first.
        """
        self.delay.start()
        if self._has_timers:
            self.timers.start()
            self.pop.start()
        if self._checker is not None:
            self._checker.start()

    def reload_transactions(self) -> None:
        """Load the progress of transactions again, because another broker was the master. `run` follows.

        Raises StoreError, StoreDamaged.
        """
        if self._transactions is not None:
            self._transactions.load()

    def arrived(self, arrivals: Arrivals) -> None:
        """Note that queues have new messages."""
        if self._polling is not None:
            self._polling.arrived(arrivals)
        topics = {topic for topic, _ in arrivals}
        if TIMER_TOPIC in topics:
            self.timers.arrived()
        if self.pop.revive_topic in topics:
            self.pop.arrived(arrivals)

    async def close(self) -> None:
        """Stop, save the progress, and close files."""
        if self._sweeping is not None:
            self._sweeping.stop()
        await self.stop()
        if self._has_timers:
            await self.timers.close()

    async def stop(self) -> None:
        """Stop, and save the progress.

        A slave or former leader saves nothing: the master continues from the last saved progress.
        """
        is_master = self._store.rejection(Reason.SLAVE) is None
        await self.delay.close(saves=is_master)
        await self.pop.stop(saves=is_master)
        await self.timers.stop(saves=is_master)
        if self._checker is not None:
            await self._checker.close(saves=is_master)

    # The registry does not know the type of its channels.

    def _producer(self, client_id: str) -> Channel | None:
        return cast(Channel | None, self._consumers.clients.producer_channel(client_id))

    def _producers(self, group: str, half: Record) -> Sequence[Channel]:
        """Return the connections of a producer group that may check a half message."""
        channels = cast(Sequence[Channel], self._consumers.clients.producer_channels(group))
        if self._access is None:
            return channels
        wanted = rights_to_end_transaction(half)
        return [channel for channel in channels if self._access.permits(channel, wanted)]


def _count_held(channel: Channel, size: int) -> bool:
    return channel.memory.add("pulls", size)
