"""LitePullConsumer: prefetches messages, which the application polls.

Source: RocketMQ 4.6 DefaultLitePullConsumer, DefaultLitePullConsumerImpl. Differs: polled messages count as
processed at the next `poll` or at `commit`; in RocketMQ immediately, so a crash loses messages.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap, wrap_queue
from rocketpy.config import ClientConfig, check_number
from rocketpy.consumer.config import LitePullConfig, check_integer
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
from rocketpy.runtime.application import check_callable, ends_program
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.telemetry.plugin import TelemetryChoice

log: Final = logging.getLogger("rocketpy.consumer")

_ASSIGN_AGAIN_S: Final = 1.0

Poller = asyncio.Task[Any] | threading.Thread
"""Who polls: a task, or a thread that uses `rocketpy.sync`."""


class LitePullConsumer(GroupConsumer):
    """Returns prefetched messages, by `poll` or by iteration.

        async with LitePullConsumer("billing", "127.0.0.1:9876") as consumer:
            consumer.subscribe("Orders", "paid")
            async for message in consumer:
                ...

    Either `subscribe`, and share the topics' queues with the group's other members, or `assign` queues. The
    messages of a poll count as processed at the next poll or at `commit`; after a crash all others are
    delivered again. A queue goes to another member after that, or after `MemberConfig.rebalance_wait_ms`.
    Only one task may poll at a time: until its messages count as processed, or it has ended, a poll by
    another task raises UsageError. Messages that cannot be processed are not redelivered: the application has
    to store them.

    Args:
        group: The common name of the members.
        namesrv: Address of the name servers, as for `Producer`.
        config: Settings of the consumer.
        client: Settings of the client.
        telemetry: As for `Producer`.

    Raises:
        GroupInvalid: The group's name is not valid.
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
        self._buffer = _PollBuffer(awaits_commits=not self.config.auto_commit)
        self._assigned: tuple[MessageQueue, ...] | None = None
        self._polling: set[Poller] = set()
        self._end_listeners: list[Callable[[], None]] = []

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
        member.is_rebalanced = self._assigned is None
        return member

    def _make_consume_service(self, member: GroupMember) -> _PollBuffer:
        return self._buffer

    async def start(self, *, wait: bool = True) -> None:
        """Join the group and begin to pull, see `PushConsumer.start`.

        Raises:
            RouteNotFound: An assigned queue is unavailable, as for `assign`.
        """
        await super().start(wait=wait)
        if self._assigned is None:
            return
        if not wait:
            self.member.tasks.spawn(self._assign_until_done(), "assign")
            return
        try:
            await self.assign(self._assigned)
        except BaseException:  # raised again: also a cancelled start cleans up
            await self.close()
            raise

    async def _assign_until_done(self) -> None:
        """Assign the queues, and repeat that until it succeeds."""
        while True:
            try:
                await self.assign(self._assigned or ())
            except RocketError as error:
                log.warning("consumer %s cannot pull its assigned queues yet: %s", self.group, error)
                await asyncio.sleep(_ASSIGN_AGAIN_S)
            else:
                return

    async def close(self) -> bool:
        """Commit offsets (with `auto_commit`), leave the group and disconnect. Safe to call again.

        The messages of the last poll count as processed only after `commit`.
        """
        closed = await super().close()
        if self._closed:
            self._buffer.end()
            while self._end_listeners:
                self._end_listeners.pop()()
        return closed

    # -- queues -------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Share a topic's queues with the group's other members.

        Raises:
            ConfigInvalid: Queues were assigned, or the expression is not valid.
        """
        if self._assigned is not None:
            raise ConfigInvalid(f"consumer {self.group} has assigned queues; use either assign or subscribe")
        super().subscribe(topic, expression)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues and no others, independent of the group's other members.

        A queue begins at the group's committed offset, or where `MemberConfig.consume_from` says; see `seek`.
        A new call replaces an earlier one that has not returned yet.

        Raises:
            ConfigInvalid: The consumer has subscribed to topics.
            UsageError: The argument is not a collection of queues.
            RouteNotFound: A topic has no route, or a queue cannot be read now.
            TransportError: No name server responds.
        """
        if self._subscriptions:
            raise ConfigInvalid(
                f"consumer {self.group} has subscribed to topics; use either assign or subscribe"
            )
        if isinstance(queues, MessageQueue):
            raise UsageError(f"assign takes a collection of queues, not a single one: {queues!r}")
        chosen = tuple(queues)
        for queue in chosen:
            wrap_queue("", queue)  # raises UsageError unless it is a queue
        self._assigned = chosen
        if self._member is None:
            return
        member = self.member
        member.is_rebalanced = False
        missing = sorted(self._drop_unassigned(member) - set(member.pullers))
        for queue in missing:  # the heartbeat reaches only brokers of known routes
            await member.find_route(queue)
        await member.client.heartbeat()
        if self._assigned is not chosen:
            return
        taken = await asyncio.gather(*(member.acquire(queue) for queue in missing))
        if self._assigned is not chosen:
            self._drop_unassigned(member)
            return
        failed = [str(queue) for queue, ok in zip(missing, taken, strict=True) if not ok]
        if failed:
            raise RouteNotFound(
                f"these queues cannot be read now: {', '.join(failed)}; call assign again later"
            )

    def _drop_unassigned(self, member: GroupMember) -> set[MessageQueue]:
        """Revoke queues that are not assigned any more; return the assigned queues with their namespace."""
        wanted = {wrap_queue(member.namespace, queue) for queue in self._assigned or ()}
        for queue in set(member.watch.queues) - wanted:
            member.revoke(queue)
        return wanted

    def when_queues_change(self, topic: str, listener: Callable[[], None]) -> None:
        """Call a function whenever a topic's route has changed; `fetch_queues` returns the new queues.

        It is called in the event loop until the consumer is closed; its exceptions are logged. RocketMQ:
        registerTopicMessageQueueChangeListener.
        """
        check_callable("the listener for queues", listener)
        member, group, limited_log = self.member, self.group, RateLimitedLog(log, 1.0)

        def changed() -> None:
            try:
                listener()
            except BaseException as error:  # the application's code
                if ends_program(error):
                    raise
                text = "consumer %s: a listener for the queues of topic %s failed"
                limited_log.exception(topic, text, group, topic, error=error)

        listeners = member.client.routes.entry(wrap(member.namespace, topic)).changed
        listeners.append(changed)
        self._end_listeners.append(partial(listeners.remove, changed))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop pulling these queues and returning their messages; None for all queues of this consumer.

        Raises ConfigInvalid for a queue that is not assigned to this consumer.
        """
        for puller in self._pullers(queues):
            puller.paused = True

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue to pull these queues, after `pause`; None for all queues of this consumer."""
        for puller in self._pullers(queues):
            puller.paused = False
            puller.wake()
        self._buffer.changed.set()

    # -- messages -----------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None, *, max_count: int | None = None) -> list[MessageExt]:
        """Return the next messages; an empty list when none arrives in time.

        Messages of a queue are in order. The messages of the previous poll now count as processed. A message
        that cannot be decoded is returned with its raw body and `MessageExt.decode_error`.

        Args:
            timeout_ms: `LitePullConfig.poll_timeout_ms` when None.
            max_count: Maximum number of messages; `LitePullConfig.poll_batch_size` when None.

        Returns:
            The messages.

        Raises:
            ClientClosed: The consumer does not run, or was started in another event loop or process.
            UsageError: The timeout is not a number, or `max_count` is not a number of 1 or more. Another task
                polls, too: its messages would count as processed while it works on them.
        """
        found = await self._poll(timeout_ms, max_count)
        return [message for _, messages in found for message in messages]

    async def getmany(
        self, timeout_ms: int | None = None, *, max_count: int | None = None
    ) -> dict[MessageQueue, list[MessageExt]]:
        """Return the next messages as `poll` does, but by queue; empty when none arrives in time.

        To commit a queue, pass the last message's `queue_offset` plus 1 to `commit`.

        Args:
            timeout_ms: As for `poll`.
            max_count: Maximum number of messages of all queues together, as for `poll`.

        Returns:
            For each queue with messages, these messages in order.

        Raises:
            ClientClosed: As for `poll`.
            UsageError: As for `poll`.
        """
        found = await self._poll(timeout_ms, max_count)
        return {messages[0].queue: messages for _, messages in found}

    async def _poll(
        self, timeout_ms: int | None, max_count: int | None
    ) -> list[tuple[Puller, list[MessageExt]]]:
        """Finish the caller's messages, and those of pollers that have ended; return new ones by puller."""
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms, 0)
        if max_count is not None:
            check_number("max_count", max_count, 1)
        member = self.member
        member.client.check_loop()
        poller = self._poller()
        if isinstance(poller, asyncio.Task):
            self._check_poller(poller)
        self._buffer.finish_polled(int(member.client.now_ms()), poller)
        self._polling.add(poller)
        try:
            wait_ms = self.config.poll_timeout_ms if timeout_ms is None else timeout_ms
            return await self._wait_for_messages(poller, wait_ms, max_count or self.config.poll_batch_size)
        finally:
            self._polling.discard(poller)

    def _poller(self) -> Poller:
        return self.calling_thread() or cast("asyncio.Task[Any]", asyncio.current_task())

    def _check_poller(self, poller: Poller) -> None:
        """Raise UsageError while another task waits for messages, or works on those of its poll."""
        for other in (*self._polling, *self._buffer.polled):
            if other is not poller and not _has_ended(other):
                name = other.get_name() if isinstance(other, asyncio.Task) else other.name
                raise UsageError(
                    f"{name} polls consumer {self.group}, too; its messages would count as processed while "
                    "it works on them. Poll in one task, which may give messages to others; or give each "
                    "task a consumer of its own. To hand over, let the first task call commit()"
                )

    async def _wait_for_messages(
        self, poller: Poller, timeout_ms: float, max_count: int
    ) -> list[tuple[Puller, list[MessageExt]]]:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        while True:
            polled = self._buffer.take(max_count, poller)
            left_s = until - loop.time()
            if polled or left_s <= 0:
                return polled
            self._buffer.changed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._buffer.changed.wait()
            except TimeoutError:
                pass
            _ = self.member  # raises when closed

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Yield messages until the consumer is closed."""
        while True:
            try:
                messages = await self.poll()
            except ClientClosed:
                if not self._closed:
                    raise
                return
            for message in messages:
                yield message

    # -- offsets ------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets and wait for the responses. RocketMQ: commitSync.

        A failure is logged and not raised, and `health()` reports it; `committed` returns the offset that is
        stored.

        Args:
            offsets: For each queue the offset of the next message. None: the messages of all polls count as
                processed, and the offsets after them are committed.

        Raises:
            UsageError: An offset is not an integer, or a key is not a `MessageQueue`.
        """
        member = self.member
        if offsets is not None:
            for offset in offsets.values():
                check_integer("offset", offset)
            wire = {wrap_queue(member.namespace, queue): offset for queue, offset in offsets.items()}
            member.watch.committed(await member.offsets.write(wire, again=True))
            self._buffer.commits(wire)
            return
        async with member.releases.committing:
            self._buffer.finish_polled(int(member.client.now_ms()), self.calling_thread())
            offsets = member.releases.progress() | member.progress()
            await member.persist(again=True)
            self._buffer.commits(offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None when there is none."""
        return await self.member.offsets.read(wrap_queue(self.member.namespace, queue))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue that `poll` will return.

        Raises:
            ConfigInvalid: The queue is not assigned to this consumer.
        """
        return self._puller(queue).process_queue.position

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue of this consumer from an offset.

        The messages of the last poll count as processed.

        Raises:
            ConfigInvalid: The offset is outside of the queue, or the queue is not assigned to this consumer.
            UsageError: The offset is not an integer.
        """
        check_integer("offset", offset)
        first, end = await self._range(queue)
        if not first <= offset <= end:
            raise ConfigInvalid(f"offset {offset} is outside of {queue}, which has offsets {first} to {end}")
        self._seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue a queue from its first message, as `seek` does."""
        first, _ = await self._range(queue)
        self._seek(queue, first)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue from the next message that is stored in it, as `seek` does."""
        _, end = await self._range(queue)
        self._seek(queue, end)

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        api, name = self.member.api, self._puller(queue).process_queue.queue
        return await api.min_offset(name), await api.max_offset(name)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        self._buffer.finish_polled(int(self.member.client.now_ms()), self._poller())
        name = self._puller(queue).process_queue.queue
        self._buffer.polled_to.pop(name, None)
        self.member.restart_pulling(name, offset)

    def _puller(self, queue: MessageQueue) -> Puller:
        puller = self.member.pullers.get(wrap_queue(self.member.namespace, queue))
        if puller is None:
            raise ConfigInvalid(f"{queue} is not assigned to this consumer")
        return puller

    def _pullers(self, queues: Iterable[MessageQueue] | None) -> list[Puller]:
        return list(self.member.pullers.values()) if queues is None else [self._puller(q) for q in queues]

    # -- for the member -----------------------------------------------------------------------

    def _make_direct_handler(self) -> DirectHandler:
        group = self.group

        async def reject(message: MessageExt) -> HandlingResult:
            raise ConfigInvalid(
                f"the consumer of group {group} polls: it has no handler to call with {message}"
            )

        return reject

    def running_properties(self) -> dict[str, str]:
        """Return the settings that administration tools show."""
        return config_properties(self.config)


def _has_ended(poller: Poller) -> bool:
    return poller.done() if isinstance(poller, asyncio.Task) else not poller.is_alive()


class _PollBuffer:
    """The `ConsumeService` of a `LitePullConsumer`: keeps pulled messages until the poll after theirs.

    awaits_commits: whether the application commits.
    """

    def __init__(self, *, awaits_commits: bool) -> None:
        self.changed = asyncio.Event()
        """Set when there may be messages to take, and at the end."""
        self.polled_to: dict[MessageQueue, int] = {}
        """The offset after the polled messages of each queue."""
        self._awaits_commits = awaits_commits
        self._committed: dict[MessageQueue, int] = {}
        self._is_over = False
        self._ready: dict[Puller, None] = {}
        self.polled: dict[Poller, list[tuple[Puller, list[MessageExt]]]] = {}
        """Messages that do not count as processed yet, by the task or thread that polled them."""
        self._finished = asyncio.Event()

    def submit(self, puller: Puller, messages: list[MessageExt], failed: int = 0) -> None:
        puller.process_queue.enqueue(messages)
        self._ready[puller] = None
        self.changed.set()

    async def wait_released(self, puller: Puller) -> None:
        """Wait until the application has processed the polled messages of a revoked queue.

        An application that commits, and has done so before, must also have committed them.
        """
        self._ready.pop(puller, None)
        while not self._is_over and (
            any(of is puller for found in self.polled.values() for of, _ in found)
            or self._lacks_commit(puller.process_queue.queue)
        ):
            self._finished.clear()
            await self._finished.wait()

    def _lacks_commit(self, queue: MessageQueue) -> bool:
        awaits = self._awaits_commits and bool(self._committed)
        return awaits and self.polled_to.get(queue, 0) > self._committed.get(queue, 0)

    def commits(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note that the application has committed offsets."""
        self._committed.update(offsets)
        self._finished.set()

    def finish_polled(self, now_ms: int, by: Poller | None) -> None:
        """Finish the messages of polls by a task or thread, and by those that have ended; None for all."""
        for poller in list(self.polled):
            if by is None or poller is by or _has_ended(poller):
                for puller, messages in self.polled.pop(poller):
                    puller.process_queue.finish(messages, now_ms)
                    puller.wake()
        self._finished.set()

    def in_progress(self) -> Sequence[object]:
        return ()

    def started(self) -> Sequence[object]:
        return ()

    async def close(self, timeout_s: float) -> Sequence[object]:
        self.end()
        return ()

    def end(self) -> None:
        """Drop all messages, wake a waiting poll, and let nobody wait for the application."""
        self._is_over = True
        self._ready.clear()
        self.changed.set()
        self._finished.set()

    def take(self, count: int, poller: Poller) -> list[tuple[Puller, list[MessageExt]]]:
        """Return at most `count` messages; queues take turns."""
        found: list[tuple[Puller, list[MessageExt]]] = []
        for puller in list(self._ready):
            if puller.paused:
                continue
            messages = puller.process_queue.take(count)
            del self._ready[puller]
            if messages:
                found.append((puller, messages))
                self.polled_to[puller.process_queue.queue] = messages[-1].queue_offset + 1
                count -= len(messages)
                self._ready[puller] = None  # after the others
            if not count:
                break
        if found:
            self.polled[poller] = found
        return found
