"""The request handlers of one broker over memory://, with a small store, and clocks that tests set."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from rocketpy.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, TopicConfig
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rocketpy.protocol.message.delays import DelayLevels
from rocketpy.protocol.message.record import Record, decode_all, host_bytes
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy_broker.broker.request_router import RequestRouter
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.admin import AdminHandler
from rocketpy_broker.handlers.base import handler_table
from rocketpy_broker.handlers.client_calls import ClientCallHandler
from rocketpy_broker.handlers.clients import ClientHandler
from rocketpy_broker.handlers.consume_stats import ConsumeStatsHandler
from rocketpy_broker.handlers.pull.long_polling import HoldTable
from rocketpy_broker.handlers.pull.offsets import OffsetHandler
from rocketpy_broker.handlers.pull.pull import PullHandler
from rocketpy_broker.handlers.pull.pull_checks import ExpressionPolicy, PullChecks
from rocketpy_broker.handlers.pull.query import QueryHandler
from rocketpy_broker.handlers.send.reply import ReplyHandler
from rocketpy_broker.handlers.send.response import ParkResponses, SendResponses
from rocketpy_broker.handlers.send.response_waiters import CommitWaiters
from rocketpy_broker.handlers.send.send import SendHandler
from rocketpy_broker.handlers.send.send_back import SendBackHandler
from rocketpy_broker.handlers.send.transactions import TransactionHandler
from rocketpy_broker.services.metadata.clients import ClientRegistry
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.locks import QueueLocks
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.pop.order import PopOrder
from rocketpy_broker.services.slices import Slices
from rocketpy_broker.services.stats import BrokerStats, PutCounts
from rocketpy_broker.services.transactions.transactions import TransactionService
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue
from rocketpy_broker.store.upkeep.cleaner import Cleaner
from tests.unit.handlers.handler_server import HandlerClient, connected
from tests.unit.store.helpers import drop_queues, small_config

HOST: Final = host_bytes("127.0.0.1", 10911)
"""Address of the broker in records and message ids."""

_numbers = itertools.count()


class BrokerParts:
    """Store, tables and handlers of a broker. Messages are dispatched as soon as they are written.

    now_ms: the monotonic clock. time_ms: the wall clock of sends, transactions and replies. delayed: level of
    each delayed message. sent_back: group and topic of each returned message. moved: requested offset and new
    offset of each consumer that was moved. registrations: number of waits for the name servers.
    """

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        delay_levels: str = "1s 5s",
        park: ParkResponses | None = None,
        make_commits: Callable[[SendResponses, Tasks, MessageStore], CommitWaiters] | None = None,
        may_read: Callable[..., bool] = lambda *_: True,
        **settings: Any,
    ) -> None:
        self.config = config = BrokerConfig(store=small_config(root), **settings)
        self.tasks = tasks = Tasks("the test")
        self.address = f"memory://parts-{next(_numbers)}"
        self.now_ms, self.time_ms = 0.0, 0
        self.delayed: list[int] = []
        self.sent_back: list[tuple[str, str]] = []
        self.moved: list[tuple[int, int]] = []
        self.registrations = self.drops = 0
        self.store = store = MessageStore(config.store, disk=disk)
        store.open()
        store.set_store_host(HOST)
        self.topics = TopicTable(config, root / "topics.json", tasks)
        self.groups = SubscriptionGroupTable(
            root / "groups.json", tasks, config.consume, retry_queues_max=config.topics.queues_max
        )
        self.offsets = ConsumerOffsets(root / "offsets.json", offsets_max=config.consume.offsets_max)
        self.clients = ClientRegistry()
        self.holds: HoldTable[tuple[str, int]] = HoldTable()
        self.stats = BrokerStats(config.cluster_name)
        self.puts = PutCounts(store)
        self.transactions = TransactionService(store, self.offsets, HOST)
        self.transactions.load()
        responses = SendResponses(store_host=HOST, region_id="r", trace_on=True)
        self.commits = make_commits(responses, tasks, store) if make_commits is not None else None
        delays = DelayLevels(delay_levels)
        self.send = SendHandler(
            store,
            self.topics,
            config,
            responses,
            schedule_dispatch=self._dispatch,
            find_group=self.groups.find,
            delays=delays,
            on_delayed=self.delayed.append,
            park=park,
            commits=self.commits,
            clock=lambda: self.time_ms,
        )
        self.slices = Slices(tasks, lambda: self.now_ms)
        expressions = ExpressionPolicy(config.consume, self.slices)
        self.client_handler = ClientHandler(
            self.clients,
            self.groups,
            self.topics,
            QueueLocks(),
            expressions,
            config.consume,
            slices=self.slices,
            now_ms=lambda: self.now_ms,
            owner=lambda channel: channel.remote_host,
        )
        self.pull = PullHandler(
            store,
            PullChecks(store, self.topics, self.groups, self.clients, expressions, config),
            self.groups,
            self.offsets,
            config.consume,
            holds=self.holds,
            stats=self.stats,
            slices=self.slices,
            now_ms=lambda: self.now_ms,
            owner=lambda channel: channel.remote_host,
            on_offset_moved=lambda header, offset: self.moved.append((header.queue_offset, offset)),
        )
        handlers = handler_table(
            tasks,
            self.send,
            SendBackHandler(
                self.topics,
                config,
                self.send,
                find_group=self.groups.find,
                delays=delays,
                on_delayed=self.delayed.append,
                on_send_back=lambda group, topic: self.sent_back.append((group, topic)),
            ),
            ReplyHandler(
                self.send,
                config.send,
                store_host=HOST,
                channel_of=self.clients.producer_channel,  # type: ignore[arg-type] # the registry has no types of channels
                clock=lambda: self.time_ms,
            ),
            TransactionHandler(self.transactions, self.send, clock=lambda: self.time_ms),
            AdminHandler(
                store,
                self.topics,
                self.groups,
                config,
                offsets=self.offsets,
                modes=RequestModeTable(config.store.root / "modes.json", tasks),
                order=PopOrder(config.store.root / "order.json", self.offsets),
                remove_check_points=self._remove_check_points,
                delay_offsets=lambda: {1: 7},
                info=lambda: {"key": "value"},
                wait_registered=self._wait_registered,
                delete_expired_files=self._delete_expired_files,
                drop_queues=self._drop_queues,
            ),
            self.pull,
            self.client_handler,
            OffsetHandler(store, self.offsets, self.clients, self.topics, self.slices),
            QueryHandler(
                store, self.clients.subscription, slices=self.slices, may_read=may_read, topics=self.topics
            ),
            ConsumeStatsHandler(
                store,
                self.topics,
                self.groups,
                self.clients,
                self.offsets,
                self.stats,
                broker_name=config.name,
                address="127.0.0.1:10911",
                slices=self.slices,
                now_ms=lambda: self.now_ms,
                sampling=lambda: self.stats.sampling(self.now_ms, self.puts),
            ),
            ClientCallHandler(
                store, self.topics, self.clients, self.offsets, slices=self.slices, broker_name=config.name
            ),
        )
        store.set_arrival_listener(self.pull.arrived)
        self.router = RequestRouter(tasks)
        closed = (self.pull.channel_closed, self.client_handler.channel_closed)
        self.router.serve(handlers, send=self.send, closed=closed)

    def _dispatch(self) -> None:
        self.store.dispatch()

    async def _remove_check_points(self, _: str) -> None:
        """There are none."""

    async def _drop_queues(self, is_unwanted: Callable[[ConsumeQueue], bool]) -> int:
        self.drops += 1
        return drop_queues(self.store, is_unwanted)

    async def _delete_expired_files(self) -> None:
        Cleaner(self.store).run(self.store.clock())

    async def _wait_registered(self) -> None:
        self.registrations += 1

    def add_topics(self, *names: str, **settings: Any) -> None:
        """Create topics of two queues."""
        self.topics.add([topic(name, **settings) for name in names])

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        """Return the first 32 messages of a queue."""
        return decode_all(self.store.get_message(topic, queue_id, 0, 32).body)


class PartsClient(HandlerClient):
    """A client of `BrokerParts` with requests that many tests send."""

    async def send(self, body: bytes = b"x", text: str = "", **header: Any) -> Command:
        """Return the response to SEND_MESSAGE_V2. text: properties."""
        return await self.call(RequestCode.SEND_MESSAGE_V2, send_header(text, **header), body)

    async def pull(self, offset: int = 0, **header: Any) -> Command:
        """Return the response to PULL_MESSAGE."""
        return await self.call(RequestCode.PULL_MESSAGE, pull_header(offset, **header))

    async def beat(self, client_id: str = "c1", **data: Any) -> Command:
        """Return the response to the heartbeat of a consumer; see `heartbeat`."""
        return await self.call(RequestCode.HEART_BEAT, body=heartbeat(client_id, **data))

    async def produce(self, client_id: str, group: str) -> None:
        """Join a producer group."""
        beat = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)])
        assert (await self.call(RequestCode.HEART_BEAT, body=beat.encode())).code == 0


@asynccontextmanager
async def served(parts: BrokerParts, clients: int = 1) -> AsyncIterator[list[PartsClient]]:
    """Serve, with this number of connected clients; then close the store."""
    async with connected(parts.address, parts.router, parts.tasks, PartsClient, clients) as made:
        yield made
    await parts.topics.saver.drain()
    parts.store.close()


@asynccontextmanager
async def broker(root: Path, *topics: str, **settings: Any) -> AsyncIterator[tuple[BrokerParts, PartsClient]]:
    """Serve a broker with topics of two queues, and with a client. settings: of `BrokerParts`."""
    parts = BrokerParts(root, **settings)
    parts.add_topics(*topics)
    async with served(parts) as (client,):
        yield parts, client


@asynccontextmanager
async def broker_of_two(
    root: Path, *topics: str, **settings: Any
) -> AsyncIterator[tuple[BrokerParts, PartsClient, PartsClient]]:
    """As `broker`, with two clients."""
    parts = BrokerParts(root, **settings)
    parts.add_topics(*topics)
    async with served(parts, clients=2) as (one, other):
        yield parts, one, other


def topic(name: str, **settings: Any) -> TopicConfig:
    """Return a topic of two queues."""
    defaults = {"read_queue_nums": 2, "write_queue_nums": 2, "perm": 6}
    return TopicConfig(topic_name=name, **{**defaults, **settings})


def send_header(text: str = "", **changes: Any) -> SendMessageRequestHeaderV2:
    """Return the header of a send to queue 0 of topic T. text: properties."""
    settings: dict[str, Any] = {
        "producer_group": "p", "topic": "T", "default_topic": "TBW102", "default_topic_queue_nums": 4,
        "queue_id": 0, "sys_flag": 0, "born_timestamp": 1, "flag": 0, "properties": text,
    }  # fmt: skip
    return SendMessageRequestHeaderV2(**{**settings, **changes})


def pull_header(
    offset: int = 0, *, sub: str | None = "*", kind: str = "TAG", wait_ms: int = 0, **changes: Any
) -> PullMessageRequestHeader:
    """Return the header of a pull from queue 0 of topic T.

    sub: the subscription in the request; None to use that of the last heartbeat. wait_ms: how long the pull
    may be held.
    """
    settings: dict[str, Any] = {
        "consumer_group": "g", "topic": "T", "queue_id": 0, "queue_offset": offset, "max_msg_nums": 32,
        "sys_flag": (wait_ms > 0) * PullSysFlag.SUSPEND | (sub is not None) * PullSysFlag.SUBSCRIPTION,
        "commit_offset": 0, "suspend_timeout_millis": wait_ms, "sub_version": 0,
        "subscription": sub, "expression_type": kind,
    }  # fmt: skip
    return PullMessageRequestHeader(**{**settings, **changes})


def heartbeat(
    client_id: str = "c1",
    groups: tuple[str, ...] = ("g",),
    *,
    model: str = "CLUSTERING",
    subscriptions: tuple[SubscriptionData, ...] = (),
    unit_mode: bool = False,
) -> bytes:
    """Return the body of a consumer's heartbeat."""
    data = [
        ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model=model,
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=list(subscriptions),
            unit_mode=unit_mode,
        )
        for group in groups
    ]
    return HeartbeatData(client_id=client_id, consumer_data_set=data).encode()
