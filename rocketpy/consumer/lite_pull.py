"""LitePullConsumer: messages are prefetched, and you ask for them when you are ready.

Source: RocketMQ 4.6 DefaultLitePullConsumer, DefaultLitePullConsumerImpl. Differs: what `poll` returned
counts as done at the next `poll`, or by `commit`; in RocketMQ at once, so a crash loses what was in hand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap, wrap_queue
from rocketpy.client.routing.routes import subscribe_queues
from rocketpy.config import ClientConfig
from rocketpy.consumer.config import LitePullConfig, check_integer, check_timeout
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.consumer.fetch.subscription import ALL, Expression
from rocketpy.consumer.group.broker_callbacks import DirectHandler, config_properties
from rocketpy.consumer.group.member import GroupMember
from rocketpy.consumer.group_consumer import GroupConsumer
from rocketpy.consumer.listeners import Observers
from rocketpy.consumer.outcomes import HandlingResult
from rocketpy.errors import ClientClosed, ConfigInvalid, RocketError, RouteNotFound, UsageError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.telemetry.plugin import TelemetryChoice

log = logging.getLogger("rocketpy.consumer")

_ASSIGN_AGAIN_S: Final = 1.0


class LitePullConsumer(GroupConsumer):
    """Gives you messages when you ask for them.

        async with LitePullConsumer("billing", "127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders", "paid")
            async for message in consumer:
                ...

    Either `subscribe`, and share the topics' queues with the group's other members, or `assign` queues of
    your own choice. What a poll returned counts as done with the next poll, or with `commit`; what was not
    done comes again. One task polls. There are no retries: what you cannot handle is yours to keep.

    group, namesrv, client, telemetry: as for `PushConsumer`. Raises GroupInvalid.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: LitePullConfig | None = None,
        client: ClientConfig | None = None,
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(group, namesrv, client, Observers(group, telemetry))
        self.config: Final = config or LitePullConfig()
        self._buffer = _PollBuffer()
        self._polled: list[tuple[Puller, list[MessageExt]]] = []
        self._assigned: tuple[MessageQueue, ...] | None = None

    def _make_member(self, client: ClientInstance) -> GroupMember:
        member = GroupMember(
            client,
            self.group,
            self.config,
            consume_type="CONSUME_ACTIVELY",
            carries_filter=True,
            commits_by_pull=False,
            handles_retries=False,
            stores_offsets=self.config.auto_commit,
        )
        member.rebalances = self._assigned is None
        return member

    def _make_consume_service(self, member: GroupMember) -> _PollBuffer:
        return self._buffer

    async def start(self, *, wait: bool = True) -> None:
        """Join the group, once; see `PushConsumer.start`. Raises RouteNotFound as `assign` does."""
        await super().start(wait=wait)
        if self._assigned is None:
            return
        if not wait:
            self.member.tasks.spawn(self._assign_until_done(), "assign")
            return
        try:
            await self.assign(self._assigned)
        except BaseException:
            await self.close()
            raise

    async def _assign_until_done(self) -> None:
        """Take the assigned queues once that works."""
        while True:
            try:
                await self.assign(self._assigned or ())
            except RocketError as error:
                log.warning("consumer %s cannot take its queues yet: %s", self.group, error)
                await asyncio.sleep(_ASSIGN_AGAIN_S)
            else:
                return

    async def close(self) -> bool:
        """Store offsets of what is done, leave the group, disconnect. Safe to call again.

        What the last poll returned counts as done only after `commit`.
        """
        closed = await super().close()
        self._buffer.end()
        return closed

    # -- which queues -------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Share a topic's queues with the group's other members. Raises ConfigInvalid after `assign`."""
        if self._assigned is not None:
            raise ConfigInvalid(f"consumer {self.group} has assigned queues; subscribe is the other way")
        super().subscribe(topic, expression)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Take these queues, and only these, whoever else has them. Raises ConfigInvalid after `subscribe`.

        Each begins at the group's offset; see `seek`. Replaces a call that still waits. Raises RouteNotFound
        when one cannot be taken now.
        """
        if self._subscriptions:
            raise ConfigInvalid(f"consumer {self.group} has subscribed to topics; assign is the other way")
        if isinstance(queues, MessageQueue):
            raise UsageError(f"assign takes queues in a list or the like, not one: {queues!r}")
        chosen = tuple(queues)
        for queue in chosen:
            wrap_queue("", queue)  # raises for what is none
        self._assigned = chosen
        if self._member is None:
            return
        member = self.member
        member.rebalances = False
        missing = sorted(self._drop_unassigned(member) - set(member.pullers))
        for queue in missing:  # brokers are told of the group as soon as they are known
            await member.client.route(queue.topic)
        await member.client.heartbeat()
        if self._assigned is not chosen:
            return
        taken = await asyncio.gather(*(member.acquire(queue) for queue in missing))
        if self._assigned is not chosen:
            self._drop_unassigned(member)
            return
        failed = [str(queue) for queue, ok in zip(missing, taken, strict=True) if not ok]
        if failed:
            raise RouteNotFound(f"these queues cannot be taken now: {', '.join(failed)}")

    def _drop_unassigned(self, member: GroupMember) -> set[MessageQueue]:
        """Drop the queues that are not assigned; return those that are, as on the wire."""
        wanted = {wrap_queue(member.namespace, queue) for queue in self._assigned or ()}
        for queue in set(member.pullers) - wanted:
            member.revoke(queue)
        return wanted

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read, as the name server tells now."""
        client = self.member.client
        return subscribe_queues(topic, await client.route(wrap(self.member.namespace, topic), fresh=True))

    def when_queues_change(self, topic: str, listener: Callable[[], None]) -> None:
        """Have a function called when a topic's route has changed; then `fetch_queues` tells.

        It is called in the event loop; what it raises is logged. RocketMQ:
        registerTopicMessageQueueChangeListener.
        """
        member = self.member

        def changed() -> None:
            try:
                listener()
            except Exception:
                log.exception("consumer %s: a listener for the queues of topic %s failed", self.group, topic)

        member.client.topic(wrap(member.namespace, topic)).changed.append(changed)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Neither pull these queues nor return what was pulled of them. None: all there are now."""
        for puller in self._pullers(queues):
            puller.paused = True

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with these queues. None: all there are now."""
        for puller in self._pullers(queues):
            puller.paused = False
            puller.wake()
        self._buffer.news.set()

    # -- messages -----------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """The next messages, at most `LitePullConfig.poll_batch_size`; none when none came in time.

        Those of each queue are in order. What the poll before returned counts as done from now on. A message
        that cannot be decoded comes with its raw body and `MessageExt.decode_error`.
        timeout_ms: `LitePullConfig.poll_timeout_ms` when None. Raises ClientClosed, also in another event
        loop than the one that started it.
        """
        check_timeout("timeout_ms", timeout_ms)
        self.member.client.check_loop()
        self._done()
        timeout_ms = self.config.poll_timeout_ms if timeout_ms is None else timeout_ms
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        while True:
            _ = self.member  # raises when closed
            self._polled = self._buffer.take(self.config.poll_batch_size)
            left_s = until - loop.time()
            if self._polled or left_s <= 0:
                return [message for _, messages in self._polled for message in messages]
            self._buffer.news.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._buffer.news.wait()
            except TimeoutError:
                continue

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Messages, one after the other, until the consumer is closed."""
        while True:
            try:
                messages = await self.poll()
            except ClientClosed:
                if not self._closed:
                    raise
                return
            for message in messages:
                yield message

    def _done(self) -> None:
        """What was given out is done with."""
        if self._polled:
            polled, self._polled = self._polled, []
            now_ms = int(self.member.client.now_ms())
            for puller, messages in polled:
                puller.process_queue.finish(messages, now_ms)
                puller.wake()

    # -- offsets ------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress now, and wait until it is stored. RocketMQ: commitSync.

        offsets: queue to the offset of the next message wanted. None: what polls have returned is done.
        """
        member = self.member
        if offsets is not None:
            for offset in offsets.values():
                check_integer("offset", offset)
            wire = {wrap_queue(member.namespace, queue): offset for queue, offset in offsets.items()}
            await member.offsets.write(wire, wait=True)
            return
        self._done()
        await member.persist(wait=True)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset of a queue; None when it has none."""
        return await self.member.offsets.read(wrap_queue(self.member.namespace, queue))

    def position(self, queue: MessageQueue) -> int:
        """The offset of the queue's next message that polls have not returned. Raises ConfigInvalid."""
        return self._puller(queue).process_queue.position

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with a queue of this member from an offset. Raises ConfigInvalid for one outside of it."""
        check_integer("offset", offset)
        first, end = await self._range(queue)
        if not first <= offset <= end:
            raise ConfigInvalid(f"{queue} has offsets {first} to {end}, not {offset}")
        self._seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with a queue from its first message."""
        self._seek(queue, (await self._range(queue))[0])

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with a queue from the next message that comes into it."""
        self._seek(queue, (await self._range(queue))[1])

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        api, name = self.member.api, self._puller(queue).process_queue.queue
        return await api.min_offset(name), await api.max_offset(name)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        self._done()
        self.member.restart_pulling(self._puller(queue).process_queue.queue, offset)

    def _puller(self, queue: MessageQueue) -> Puller:
        puller = self.member.pullers.get(wrap_queue(self.member.namespace, queue))
        if puller is None:
            raise ConfigInvalid(f"{queue} is not among this consumer's queues")
        return puller

    def _pullers(self, queues: Iterable[MessageQueue] | None) -> list[Puller]:
        return list(self.member.pullers.values()) if queues is None else [self._puller(q) for q in queues]

    # -- for the group ------------------------------------------------------------------------

    def _make_direct_handler(self) -> DirectHandler:
        group = self.group

        async def refuse(message: MessageExt) -> HandlingResult:
            raise ConfigInvalid(f"group {group} polls; it has no handler to give {message} to")

        return refuse

    def running_properties(self) -> dict[str, str]:
        """Its settings, for operators."""
        return config_properties(self.config)


class _PollBuffer:
    """Pulled messages that wait for a poll. news: set when there may be something. See `ConsumeService`."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._ready: dict[Puller, None] = {}

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        puller.process_queue.wait(messages)
        self._ready[puller] = None
        self.news.set()

    async def wait_released(self, puller: Puller) -> None:
        self._ready.pop(puller, None)

    def in_progress(self) -> Sequence[object]:
        return ()

    async def close(self, timeout_s: float) -> Sequence[object]:
        self.end()
        return ()

    def end(self) -> None:
        """Wake a poll that waits."""
        self._ready.clear()
        self.news.set()

    def take(self, count: int) -> list[tuple[Puller, list[MessageExt]]]:
        """At most `count` messages; queues take turns."""
        found: list[tuple[Puller, list[MessageExt]]] = []
        for puller in list(self._ready):
            if puller.paused:
                continue
            messages = puller.process_queue.take(count)
            del self._ready[puller]
            if messages:
                found.append((puller, messages))
                count -= len(messages)
                self._ready[puller] = None  # behind the others
            if not count:
                break
        return found
