"""The part of a broker that sees to messages which are not delivered as they are sent, and at once:
delayed, transactional and sent back ones, and replies. Wires their services and handlers together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import cast

from rocketpy.errors import StoreError
from rocketpy.protocol.bodies import PERM_READ, PERM_WRITE
from rocketpy.protocol.message.record import Record
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.send.reply import ReplyHandler
from rocketpy_broker.handlers.send.response import ParkResponses, SendResponses
from rocketpy_broker.handlers.send.response_waiters import CommitWaiters
from rocketpy_broker.handlers.send.send import FindGroup, SendHandler
from rocketpy_broker.handlers.send.send_back import SendBackHandler
from rocketpy_broker.handlers.send.transactions import TransactionHandler
from rocketpy_broker.security.guard import AccessGuard
from rocketpy_broker.security.required_permissions import permissions_to_end_transaction
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.topics import TopicTable, own_topic
from rocketpy_broker.services.transactions.transaction_check import TransactionChecker
from rocketpy_broker.services.transactions.transactions import TransactionService
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.upkeep.driver import StoreDriver


class DeliveryServices:
    """Delay levels and transactions of one broker, and the handlers of all that stores messages.

    `load` before requests come, `start` with them, `run` on a master, `close` when no more come and the
    store is still open.
    sent_back: told group and topic of each message that a consumer sent back. access: who may do what.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        driver: StoreDriver,
        topics: TopicTable,
        tasks: Tasks,
        *,
        clients: ClientRegistry,
        find_group: FindGroup,
        offsets: ConsumerOffsets,
        sent_back: Callable[[str, str], None],
        access: AccessGuard | None = None,
    ) -> None:
        self._access = access
        self._config = config
        self._tasks = tasks
        self._store = store
        self._driver = driver
        self._topics = topics
        self._clients = clients
        self._find_group = find_group
        self._offsets = offsets
        self._sent_back = sent_back
        self.delay = DelayService(
            store,
            driver,
            config.store.root / "config" / "delayOffset.json",
            tasks,
            interval_ms=config.delay_offset_interval_ms,
        )
        self._checker: TransactionChecker | None = None
        self._transactions: TransactionService | None = None

    def load(self) -> None:
        """Read what was saved; the store is open and dispatched. Raises StoreDamaged."""
        self.delay.load()

    @property
    def halves(self) -> int:
        """Transactional messages whose end is not known yet."""
        if self._transactions is None:
            return 0
        with contextlib.suppress(StoreError):  # then it tells how many there were
            self._transactions.catch_up()
        return len(self._transactions.table.open)

    def start(
        self,
        host: bytes,
        answers: SendResponses,
        park: ParkResponses | None,
        commits: CommitWaiters | None = None,
    ) -> tuple[SendHandler, Sequence[object]]:
        """Return the send handler, and all handlers that store messages; see `run`.

        host: of this broker, as in records. answers, park, commits: as `SendHandler` takes them.
        """
        config, store, delay = self._config, self._store, self.delay

        def written() -> None:
            if park is not None:
                park([], store.max_physical_offset)  # nobody may read it before it is flushed
            self._driver.schedule_dispatch()

        self._transactions = transactions = TransactionService(store, self._offsets, host)
        if commits is None:  # else when this broker leads
            transactions.load()
        send = SendHandler(
            store,
            self._topics,
            config,
            answers,
            schedule_dispatch=self._driver.schedule_dispatch,
            find_group=self._find_group,
            delays=delay.levels,
            on_delayed=delay.scheduled,
            park=park,
            commits=commits,
        )
        send_back = SendBackHandler(
            store,
            self._topics,
            config,
            send,
            find_group=self._find_group,
            delays=delay.levels,
            on_delayed=delay.scheduled,
            on_send_back=self._sent_back,
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
        delay.on_delivered = written
        ends = TransactionHandler(store, transactions, send)
        return send, (send, send_back, reply, ends)

    def _make_topic(self, name: str) -> None:
        if self._topics.get(name) is None:
            self._topics.add([own_topic(name, 1, PERM_READ | PERM_WRITE)])

    def run(self) -> None:
        """Deliver and check from now on: a master's work."""
        self.delay.start()
        if self._checker is not None:
            self._checker.start()

    def reload(self) -> None:
        """Read anew what was saved, and what is in the store: another broker did this work until now.

        Raises StoreError, StoreDamaged. `run` follows.
        """
        self.delay.load()
        if self._transactions is not None:
            self._transactions.load()

    async def close(self) -> None:
        """Deliver and check no more; note how far both are.

        Who does not lead its group any more notes nothing: the next leader goes on from what was noted last.
        """
        leads = self._store.rejection(Reason.SLAVE) is None
        await self.delay.close(saves=leads)
        if self._checker is not None:
            await self._checker.close(saves=leads)

    # The registry knows channels as any object that stands for a connection; a broker puts channels in.

    def _producer(self, client_id: str) -> Channel | None:
        return cast(Channel | None, self._clients.producer_channel(client_id))

    def _producers(self, group: str, half: Record) -> Sequence[Channel]:
        """Return who may be asked about a half message of a producer group."""
        channels = cast(Sequence[Channel], self._clients.producer_channels(group))
        if self._access is None:
            return channels
        wanted = permissions_to_end_transaction(half)
        return [channel for channel in channels if self._access.permits(channel, wanted)]
