"""Copies topics, offsets, groups and request modes from the master to a slave, every 10 s.

Source: SlaveSynchronize of RocketMQ 4.6.0, with its request codes in its order (QUIRKS 56). Differs: if the
master sends the commit times of offsets, the slave copies only offsets that were committed later than its
own. So it copies a reset, and keeps newer commits (apache/rocketmq #1094).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from rocketpy.errors import BrokerError, RocketError, RouteNotFound
from rocketpy.protocol.bodies import (
    ConsumerOffsetSerializeWrapper,
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetMaxOffsetResponseHeader
from rocketpy.runtime.progress import Jobs
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.config.model import RegistrationConfig
from rocketpy_broker.services.cluster.remoting_client import RemotingClient
from rocketpy_broker.services.delay.scheduler import DelayService
from rocketpy_broker.services.metadata.groups import SubscriptionGroupTable
from rocketpy_broker.services.metadata.offsets import ConsumerOffsets
from rocketpy_broker.services.metadata.request_modes import RequestModeTable
from rocketpy_broker.services.metadata.topics import TopicTable
from rocketpy_broker.services.pop.formats import SEEN_GROUP
from rocketpy_broker.store import MessageStore
from rocketpy_broker.store.queue.consume_queue import ConsumeQueue

log = logging.getLogger("rocketpy.broker.sync")

_WAIT_S: Final = 0.05
_WAITS_MAX: Final = 40
_COPY = "copy of topics and offsets from the master"

WITH_VERSIONS: Final = "rocketpyVersions"
"""Ext field with which a slave requests the commit time of each offset; not in RocketMQ."""

RequestTable = Callable[[int, dict[str, str] | None], Awaitable[bytes]]
"""Requests a table from the master by code and fields; empty without a master. Raises RocketError."""


@dataclass(eq=False)
class SlaveSync:
    """Copies the tables of a master to a slave."""

    topics: TopicTable
    groups: SubscriptionGroupTable
    modes: RequestModeTable
    offsets: ConsumerOffsets
    delay: DelayService
    store: MessageStore
    tasks: Tasks
    _: KW_ONLY
    registration: RegistrationConfig
    """Provides credentials and TLS settings for the requests."""
    interval_ms: int
    drop_queues: Callable[[Callable[[ConsumeQueue], bool]], Awaitable[int]]
    """See `StoreDriver.drop_queues`."""
    may_sync: Callable[[], bool]
    """Returns whether to copy from the current master."""
    copy_more: Callable[[RequestTable], Awaitable[None]] | None = None
    """Copies other data after the tables."""
    adopt_timers: Callable[[bytes, bytes], None] | None = None
    """Takes over checkpoint and metrics of the master's timers; None without timers. Raises RocketError."""

    def __post_init__(self) -> None:
        self._credentials = self.registration.credentials
        self._options = ChannelOptions(ssl=self.registration.ssl)
        # Name servers return addresses without a scheme; if all of them use TLS, brokers use it too.
        servers = self.registration.namesrv
        self._uses_tls = bool(servers) and all(server.scheme == "tls" for server in servers)
        self._master: RemotingClient | None = None
        self._copying: PeriodicCall | None = None
        self._dropped_until = 0
        """End of the records whose deletion has been applied."""
        self.problem = ""
        """Why the last copy failed; empty if it succeeded."""
        self.jobs: Jobs = Jobs()

    def follow(self, address: str) -> None:
        """Start copying from a master, instead of the previous one. address: its address for clients."""
        parsed = Address.parse(address)
        if self._uses_tls and parsed.scheme == "tcp":
            parsed = replace(parsed, scheme="tls")
        if self._master is None or parsed != self._master.address:
            self._disconnect()
            self._master = RemotingClient(parsed, self._credentials, self._options)
            if self._copying is not None:
                self._copying.wake()

    def unfollow(self) -> None:
        """Stop copying until the next `follow`."""
        self._disconnect()
        self._master = None

    def start(self) -> None:
        """Start copying periodically; nothing if it was started."""
        if self._copying is None:
            self._copying = self.tasks.every(self.interval_ms / 1000, self._copy, _COPY, first_s=0)

    async def close(self) -> None:
        """Stop copying."""
        if self._copying is not None:
            await self.tasks.cancel(self._copying.task)
            self._copying = None
        self._disconnect()

    def _disconnect(self) -> None:
        if self._master is not None:
            self._master.close()

    async def _copy(self) -> None:
        master = self._master
        if master is None:
            self.jobs.ended(_COPY, RouteNotFound("no master is known"))
            return
        try:
            if self.may_sync():
                await self.sync_all()
                self.problem = ""
                self.jobs.ended(_COPY)
        except RocketError as error:
            self.jobs.ended(_COPY, error)
            level = logging.DEBUG if self.problem else logging.WARNING
            self.problem = str(error)
            log.log(
                level,
                "cannot copy topics, groups and offsets from master %s, trying again: %s",
                master.address,
                error,
            )
            self._disconnect()

    async def sync_all(self) -> None:
        """Copy all tables once, if a master is known.

        Raises RocketError; the tables that were copied before the error are kept.
        """
        master = self._master
        if master is None:
            return
        topics = TopicConfigSerializeWrapper.decode(await self._request(RequestCode.GET_ALL_TOPIC_CONFIG))
        removed = set(self.topics.names) - topics.topic_config_table.keys()
        deleted = self.topics.deleted
        await self.topics.adopt(topics)
        await self._apply_deletions(deleted, removed, topics.data_version.timestamp)
        table = await self._request(RequestCode.GET_ALL_CONSUMER_OFFSET, {WITH_VERSIONS: "true"})
        offsets = ConsumerOffsetSerializeWrapper.decode(table)
        if await self._has_check_points_of(offsets, master):
            self.offsets.merge(offsets)
        await self.delay.adopt(await self._request(RequestCode.GET_ALL_DELAY_OFFSET))
        groups = await self._request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        await self.groups.adopt(SubscriptionGroupWrapper.decode(groups))
        if self.copy_more is not None:
            await self.copy_more(self._request)
        if not master.responds_to_all:
            return
        modes = await self._request_newer(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        if modes:
            await self.modes.adopt(MessageRequestModeSerializeWrapper.decode(modes))
        if self.adopt_timers is not None:
            await self._copy_timers(self.adopt_timers)

    async def _has_check_points_of(
        self, offsets: ConsumerOffsetSerializeWrapper, master: RemotingClient
    ) -> bool:
        """Whether this slave has the check points of all pops that the offsets of its master include.

        It waits for them, for a while. As the master, it would skip messages of a pop whose check point it
        lacks. Raises RocketError.
        """
        ends = {
            (key.rpartition("@")[0], queue_id)
            for key, queues in offsets.offset_table.items()
            if key.endswith(f"@{SEEN_GROUP}")
            for queue_id in queues
        }
        for topic, queue_id in sorted(ends):
            fields = {"topic": topic, "queueId": str(queue_id)}
            response = await master.call(RequestCode.GET_MAX_OFFSET, fields)
            end = response.header_as(GetMaxOffsetResponseHeader).offset
            for _ in range(_WAITS_MAX):
                if self.store.max_offset_in_queue(topic, queue_id) >= end:
                    break
                await asyncio.sleep(_WAIT_S)
            else:
                log.warning("consumer offsets are not copied: this slave is behind in topic %s", topic)
                return False
        return True

    async def _copy_timers(self, adopt: Callable[[bytes, bytes], None]) -> None:
        """Copy the checkpoint and the metrics of the timers. Raises RocketError.

        A slave without it finds what was delivered by its key index, when it becomes the master.
        """
        checkpoint = await self._request_newer(RequestCode.GET_TIMER_CHECK_POINT)
        if checkpoint:
            adopt(checkpoint, await self._request_newer(RequestCode.GET_TIMER_METRICS))

    async def _request_newer(self, code: int) -> bytes:
        """Request a table that earlier versions do not have; empty from these. Raises RocketError."""
        try:
            return await self._request(code)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return b""

    async def _apply_deletions(
        self, before: Mapping[str, int], removed: Collection[str], changed_ms: int
    ) -> None:
        """Drop the queues and offsets of topics that the master has deleted. Raises StoreError.

        before: the deletions known so far. removed: topics that are no longer in the table, which was changed
        last at `changed_ms`. Records that the slave has not dispatched yet are dropped with a later copy.
        """
        deleted = self.topics.deleted
        new = {topic for topic, end in deleted.items() if before.get(topic) != end}
        for topic in new:
            self.offsets.remove_topic(topic)
        if new or self._dropped_until < max(deleted.values(), default=0):
            self._dropped_until = self.store.dispatcher.offset
            self.store.drop_deleted(deleted)

        def is_removed(queue: ConsumeQueue) -> bool:
            if queue.topic not in removed:
                return False
            newest = self.store.max_offset_in_queue(queue.topic, queue.queue_id) - 1
            stored_ms = self.store.store_timestamp(queue.topic, queue.queue_id, newest)
            return stored_ms <= changed_ms  # not of a new topic

        if removed:
            await self.drop_queues(is_removed)

    async def _request(self, code: int, fields: dict[str, str] | None = None) -> bytes:
        return b"" if self._master is None else await self._master.request(code, fields)
