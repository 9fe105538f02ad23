"""GroupMember: one member of a consumer group: rebalance, pullers, locks and offsets.

It registers with brokers, looks up the group's other members, acquires and revokes queues, pulls the assigned
ones, and commits offsets. A `ConsumeService` handles the messages.

Source: RocketMQ 4.6 DefaultMQPushConsumerImpl, RebalanceImpl, RebalancePushImpl, RebalanceService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import wrap
from rocketpy.client.routing.routes import subscribe_queues
from rocketpy.consumer.config import MemberConfig, MessageModel, PushConfig, Sharing
from rocketpy.consumer.fetch.consumer_api import ConsumerApi, is_rejection
from rocketpy.consumer.fetch.process_queue import Limits, ProcessQueue, limits_of
from rocketpy.consumer.fetch.puller import OffsetMoveBackoff, PullContext, Puller
from rocketpy.consumer.fetch.subscription import ALL, Expression, retry_topic, subscription_data
from rocketpy.consumer.group.conflict_check import ConflictCheck
from rocketpy.consumer.group.offset_stores import OffsetStore, offset_store
from rocketpy.consumer.group.progress_watch import ProgressWatch
from rocketpy.consumer.group.queue_locks import LOCK_CHECK_MS, QueueLocks
from rocketpy.consumer.group.rebalance import AwayQueues, Handover, MemberLists, Rebalance
from rocketpy.consumer.group.release import Releases
from rocketpy.consumer.group.start_offsets import StartOffsets
from rocketpy.consumer.handling.service import ConsumeService
from rocketpy.consumer.pop.sharing import MessageSharing, Popper
from rocketpy.consumer.stats import SAMPLE_MS, ConsumerStats
from rocketpy.errors import BrokerError, InvariantError, RocketError
from rocketpy.message.decode import log_undecodable
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import ConsumerData, MessageQueue, SubscriptionData
from rocketpy.protocol.headers import ANY_QUEUE
from rocketpy.results import QueueState
from rocketpy.runtime.rate_limited_log import RateLimitedLog, abbreviate
from rocketpy.runtime.tasks import PeriodicCall, Tasks, subtask

log: Final = logging.getLogger("rocketpy.consumer")

_REQUEST_TIMEOUT_MS: Final = 6000
_LAST_COMMIT_S: Final = 5
"""How long `close` waits for the last commit, as brokers may not respond."""
_RELEASE_S: Final = 1.0
"""How long `close` waits until messages or queues are given back: others get them later anyway."""
_CLOSE_WARNING_S: Final = 1.0
"""After this time `close` logs the handlers that it waits for."""
_REBALANCE_SOON_MS: Final = 250
"""First pause after an incomplete rebalance; it doubles up to the usual interval."""
_HANDOVER_MS: Final = 500
"""Longest pause while the member waits for a queue that another one has not released."""


class GroupMember:
    """A member of a consumer group. The names of topics and queues in it include the namespace.

    consume_type: CONSUME_PASSIVELY or CONSUME_ACTIVELY, for administration tools. orderly: queues are locked
    before they are pulled. span_max: see `PushConfig`. carries_filter: whether pulls carry the subscription.
    commits_by_pull: whether pulls carry the offset to commit. handles_retries: whether the member consumes
    the retry topic. stores_offsets: whether offsets are committed automatically. push: settings of a push
    consumer, which may share messages instead of queues.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        config: MemberConfig,
        *,
        consume_type: str,
        orderly: bool = False,
        span_max: int | None = None,
        carries_filter: bool = False,
        commits_by_pull: bool = True,
        handles_retries: bool = True,
        stores_offsets: bool = True,
        push: PushConfig | None = None,
    ) -> None:
        self.client = client
        self.config: Final = config
        self.namespace: str = client.config.namespace
        self.group: Final = wrap(self.namespace, group)
        self.consume_type: Final = consume_type
        self.orderly: Final = orderly
        self.broadcasting: Final = config.model is MessageModel.BROADCASTING
        self._shares_messages = push is not None and push.sharing is Sharing.MESSAGES
        self.locks_queues: Final = orderly and not self.broadcasting and not self._shares_messages
        """Whether queues are consumed only with a lock."""
        self.api: ConsumerApi = ConsumerApi(client, self.group, _REQUEST_TIMEOUT_MS)
        self.tasks: Tasks = Tasks(f"consumer group {self.group}")
        self.started_ms: Final = time.time_ns() // 1_000_000
        self.sharing: MessageSharing | None = None
        """For the topics whose messages, not queues, are shared; None for a member without a handler."""
        if push is not None:
            self.sharing = MessageSharing(client, self.group, push, self.tasks)
        self._popped_topics: set[str] = set()
        """Topics of which the broker has set the group's mode to POP."""
        self.stats: ConsumerStats = ConsumerStats(client.now_ms())
        self.pullers: dict[MessageQueue, Puller] = {}
        """The pullers of the assigned queues that were acquired."""
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.queues_of: dict[str, tuple[MessageQueue, ...]] = {}
        """The queues of each topic whose route was found."""
        self.handles_retries: Final = handles_retries and not self.broadcasting
        self.consume_service: ConsumeService | None = None
        self.offsets: OffsetStore = offset_store(self.api, config, group, pulls_commit=commits_by_pull)
        self.closing: bool = False
        self.is_rebalanced: bool = True
        """Whether the rebalance of the group assigns queues to the member; otherwise the application does."""
        self.undecodable: int = 0
        """Number of messages that could not be decoded."""
        self.stores_offsets: Final = stores_offsets
        self._span_max = span_max
        self._retry_topic = retry_topic(self.group)
        self._has_joined = False
        self._rebalancing: PeriodicCall | None = None
        self._rebalance_soon_ms = _REBALANCE_SOON_MS
        self._limited_log = RateLimitedLog(log)
        self._illegal_offset_backoff = OffsetMoveBackoff()
        self._acquiring: dict[MessageQueue, asyncio.Future[None]] = {}
        self._conflicts = ConflictCheck(self.api, self.describe, self.queues_of, self.pullers)
        self._rebalance = Rebalance(self.group, client.client_id, config.allocation, self.broadcasting)
        self._rebalance_all = replace(self._rebalance, broadcasting=True)
        self._start_offsets = StartOffsets(self.api, self.offsets, config, self._retry_topic, self.started_ms)
        self._handover = Handover(self._rebalance, config.rebalance_wait_ms, client.config.route_refresh_ms)
        self._member_lists = MemberLists()
        self._away = AwayQueues()
        self.context: PullContext = PullContext(
            client=client,
            tasks=self.tasks,
            api=self.api,
            config=config,
            subscription=self._subscription,
            limits=self._limits,
            deliver=self._deliver,
            on_offset_illegal=self._on_offset_illegal,
            commits=commits_by_pull and stores_offsets and not self.broadcasting,
            carries_filter=carries_filter,
            record_pull=self.stats.record_pull,
            rejection_log=self._limited_log,
        )
        self.watch: ProgressWatch = ProgressWatch(
            client,
            config,
            self._retry_topic,
            self.pullers,
            lambda: self.context.paused,
            locks_queues=self.locks_queues,
            commits=stores_offsets,
        )
        self.locks: QueueLocks = QueueLocks(self.api, self._locked, self.watch, needed=self.locks_queues)
        wait_ms = None if self.locks_queues else config.rebalance_wait_ms
        self.releases: Releases = Releases(
            client, self.tasks, self.offsets, wait_ms, stores_offsets, self.locks
        )

    # -- start and close ----------------------------------------------------------------------

    async def start(self, consume_service: ConsumeService | None, *, wait: bool) -> None:
        """Join the group; without `wait`, in the background. Raises BrokerError for a rejected filter."""
        self.consume_service = consume_service
        if self.handles_retries:
            self.subscribe(self._retry_topic, ALL)
        if wait:
            await self._join()
            self._has_joined = True
        every, interval_s = self.tasks.every, self.config.rebalance_interval_ms / 1000
        self._rebalancing = every(interval_s, self._rebalance_periodically, "rebalance", first_s=0)
        if self.stores_offsets:
            every(self.config.persist_interval_ms / 1000, self.persist, "commit of offsets")
        every(SAMPLE_MS / 1000, self._sample, "sampling of rates")
        every(interval_s, self._conflicts.run, "comparison of members")
        if not self.broadcasting:
            every(LOCK_CHECK_MS / 1000, self.locks.renew_due, "renewal of locks")

    async def _join(self) -> None:
        for topic in list(self.subscriptions):
            await self._find_queues(topic)
        for topic in list(self.subscriptions):
            await self._check_filter(topic)
        await self.client.heartbeat()
        if self.sharing is not None and self._shares_messages:
            await self.sharing.api.check_brokers(self.queues_of)

    async def close(self) -> Sequence[object]:
        """Stop pulling, wait for handlers, commit offsets, unlock queues and end the tasks.

        `ClientRemotingProcessor.remove` then unregisters the member from brokers. Returns what unfinished
        handlers work on: messages, or the queues of an orderly consumer.
        """
        if self.closing:
            return ()
        self.closing = True
        self.context.paused = True
        try:
            for puller in self.pullers.values():
                puller.stop()
            left = await self._end_handlers()
            if self.sharing is not None:
                await self.sharing.close(timeout_s=_RELEASE_S)
            await self.releases.wait(timeout_s=_RELEASE_S)
            if self.stores_offsets:
                await self._commit_last()
            if self._shares_queues:
                await self.locks.close(self._acquiring)
            for puller in self.pullers.values():
                puller.process_queue.drop()
        finally:
            self.pullers.clear()
            self.watch.queues.clear()
            await self.tasks.close()
            for topic in self.subscriptions:
                changed = self.client.routes.entry(topic).changed
                if self.rebalance_soon in changed:
                    changed.remove(self.rebalance_soon)
        return left

    async def _commit_last(self) -> None:
        try:
            async with asyncio.timeout(_LAST_COMMIT_S):
                await self.persist(again=True)
        except TimeoutError:
            text = "group %s: not all offsets were stored within %d s, so messages may be delivered again"
            log.warning(text, self.group, _LAST_COMMIT_S)

    async def _end_handlers(self) -> Sequence[object]:
        if self.consume_service is None:
            return ()
        timeout_s = self.config.close_timeout_ms / 1000
        ending = subtask(self.consume_service.close(timeout_s), f"end handlers of {self.group}")
        if self.sharing is not None:
            await asyncio.sleep(0)  # no further call begins
            with contextlib.suppress(TimeoutError):  # `MessageSharing.close` tries again
                async with asyncio.timeout(_RELEASE_S):
                    await self.sharing.release_unstarted(self.consume_service)
        if timeout_s > _CLOSE_WARNING_S and not (await asyncio.wait({ending}, timeout=_CLOSE_WARNING_S))[0]:
            text = "group %s: close waits up to %.1f s for handlers of %s"
            log.warning(text, self.group, timeout_s, abbreviate(self.consume_service.in_progress()))
        return await ending

    def pause(self) -> None:
        """Stop pulling."""
        self.context.paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self.context.paused = False
        for puller in self.pullers.values():
            puller.wake()
        self.rebalance_soon()

    def queue_states(self) -> dict[MessageQueue, QueueState]:
        """Return the state of each assigned queue, and of each that was revoked but is not released yet."""
        return dict.fromkeys(self.releases.pullers(), QueueState.REVOKED) | self.watch.states()

    def problems(self) -> list[str]:
        """Return a text for everything that does not succeed, and for conflicts with other members."""
        return [*self.watch.problems(), *self._conflicts.problems]

    def _sample(self) -> None:
        self.stats.sample(self.client.now_ms())

    def describe(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.config.model.value,
            consume_from_where=self.config.consume_from.value,
            subscription_data_set=list(self.subscriptions.values()),
            unit_mode=self.config.unit_mode,
        )

    # -- subscriptions ------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression) -> None:
        """Subscribe to a topic, or change its expression. Raises ConfigInvalid."""
        before = self.subscriptions.get(topic)
        version = max(time.time_ns() // 1_000_000, before.sub_version + 1 if before is not None else 0)
        self.subscriptions[topic] = subscription_data(topic, expression, version)
        if self.is_rebalanced:
            self.watch.add_topic(topic)
        changed = self.client.routes.entry(topic).changed
        if self.rebalance_soon not in changed:
            changed.append(self.rebalance_soon)
        self.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        self.watch.remove_topic(topic)
        if self.subscriptions.pop(topic, None) is not None:
            self.client.routes.entry(topic).changed.remove(self.rebalance_soon)
            self.rebalance_soon()

    async def announce_subscription(self, topic: str) -> None:
        """Send a changed subscription to brokers, and restart the pulls that they hold for the old one."""
        if topic in self.subscriptions:
            await self._find_queues(topic)
            with contextlib.suppress(BrokerError):  # logged, and shown by `problems`
                await self._check_filter(topic)
        await self.client.heartbeat()
        for puller in list(self.pullers.values()):
            if puller.process_queue.queue.topic == topic:
                puller.stop()
                puller.start()
        self.rebalance_soon()

    async def _check_filter(self, topic: str) -> None:
        """Let brokers check an SQL92 filter. Raises BrokerError if one rejects it."""
        subscription = self.subscriptions.get(topic)
        if subscription is None or subscription.expression_type == "TAG":
            return
        try:
            await self.api.check_subscription(subscription)
        except BrokerError as error:
            self.watch.filter_checked(topic, error)
            self._limited_log.error(str(error), "group %s: %s", self.group, error)
            raise
        except RocketError as error:
            text = "group %s: the filter of topic %s was not checked by all brokers: %s"
            log.warning(text, self.group, topic, error)
        else:
            self.watch.filter_checked(topic, None)

    async def _find_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        try:
            route = await self.client.routes.get(topic)
        except RocketError as error:
            self.watch.no_route(topic, error)
            if topic != self._retry_topic:
                key = f"{type(error).__name__} {topic}"
                self._limited_log.warning(
                    key, "group %s cannot look up topic %s: %s", self.group, topic, error
                )
            return None
        self.watch.has_route(topic)
        queues = subscribe_queues(topic, route)
        if self._is_popped(topic):
            names = dict.fromkeys(queue.broker_name for queue in queues)
            queues = tuple(MessageQueue(topic, name, ANY_QUEUE) for name in names)
        self.queues_of[topic] = queues
        return queues

    def _is_popped(self, topic: str) -> bool:
        """Return whether the group shares the messages of a topic, not its queues."""
        return self._shares_messages or topic in self._popped_topics

    async def _find_mode(self, topic: str) -> None:
        """Ask a broker of RocketMQ 5 whether an operator has set the group's mode of a topic to POP."""
        if self.sharing is None or self._shares_messages or topic == self._retry_topic:
            return
        is_popped = await self.sharing.api.is_popped(topic)
        if is_popped is not None and is_popped != (topic in self._popped_topics):
            (self._popped_topics.add if is_popped else self._popped_topics.discard)(topic)
            what = "messages (POP)" if is_popped else "queues"
            log.info("group %s shares the %s of topic %s, as its broker says", self.group, what, topic)

    # -- rebalancing --------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance soon: the group, a subscription or a route has changed."""
        if self._rebalancing is not None:
            self._rebalancing.wake()

    async def _rebalance_periodically(self) -> float:
        """Join first if `start` did not, then rebalance. Returns the pause before the next rebalance in s."""
        if not self._has_joined:
            with contextlib.suppress(BrokerError):  # a rejected filter is logged, and shown by `problems`
                await self._join()
            self._has_joined = True
        complete = await self.rebalance() if self.is_rebalanced and not self.closing else True
        usual_ms = self.config.rebalance_interval_ms
        wait_ms = usual_ms if complete else min(self._rebalance_soon_ms, usual_ms)
        if self._handover.is_waiting:
            wait_ms = min(wait_ms, _HANDOVER_MS)
        self._rebalance_soon_ms = _REBALANCE_SOON_MS if complete else 2 * wait_ms
        return wait_ms / 1000

    async def rebalance(self) -> bool:
        """Revoke and acquire queues as the strategy computes.

        Returns False if a lookup or the strategy failed or a queue was not acquired; the caller repeats the
        rebalance then.
        """
        complete = True
        changed = False
        for queue in self._rebalance.unsubscribed(self.subscriptions, list(self.watch.queues)):
            changed = True
            self.revoke(queue)
        for topic in list(self.subscriptions):
            topic_complete, topic_changed = await self._rebalance_topic(topic)
            complete = complete and topic_complete
            changed = changed or topic_changed
        if changed:
            log.info("group %s: %d queues are assigned to this member", self.group, len(self.pullers))
        return complete

    async def _rebalance_topic(self, topic: str) -> tuple[bool, bool]:
        """Revoke and acquire queues of a topic. Returns as `rebalance`, and if any queue changed."""
        await self._find_mode(topic)
        queues = await self._find_queues(topic)
        takes_all = self.broadcasting or self._is_popped(topic)
        members = await self._find_members(topic) if queues is not None and not takes_all else None
        complete = queues is not None and (takes_all or members is not None)
        away = await self._find_away(topic) if queues is not None else set[MessageQueue]()
        try:
            rebalance = self._rebalance_all if takes_all else self._rebalance
            changes = rebalance.changes(topic, queues, members, self.pullers.keys() - away)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - application code: its topic keeps its queues
            self.watch.strategy_failed(topic, error)
            text = "group %s: the strategy has allocated no queues of topic %s"
            self._limited_log.exception(f"strategy {topic}", text, self.group, topic)
            return False, False
        if queues is not None and complete:
            self.watch.topic_assigned(topic, queues, changes.assigned)
        for queue in changes.revoked:
            self.revoke(queue)
        if queues is not None and members is not None:
            self._handover.begin(topic, queues, members, changes.assigned)
        acquired = await asyncio.gather(*(self.acquire(queue) for queue in changes.assigned))
        if members is not None and all(acquired):
            self._handover.end(topic)
        return complete and all(acquired), bool(changes.revoked) or any(acquired)

    async def _find_away(self, topic: str) -> set[MessageQueue]:
        """Return the queues of a topic that the member keeps, because their brokers are away.

        Such a broker is in neither the topic's route nor the name server's list of brokers. One that is in
        the list has the topic no more.
        """
        route = self.client.routes.entry(topic).route
        known = {data.broker_name for data in route.queue_datas} if route is not None else set()
        lacking = {queue for queue in self.pullers if queue.topic == topic and queue.broker_name not in known}
        if lacking:
            with contextlib.suppress(RocketError):
                alive = {data.broker_name for data in await self.client.brokers()}
                lacking = {queue for queue in lacking if queue.broker_name not in alive}
        return self._away.keep(topic, lacking, self.client.now_ms())

    async def _find_members(self, topic: str) -> Sequence[str] | None:
        """Return the client ids of the group's members, from a broker of the topic; None if unknown."""
        try:
            found = await self.api.members(topic)
        except RocketError as error:
            self._report_unknown_members(topic, error)
            return None
        members = self._member_lists.complete(*found, self.client.now_ms())
        if self.client.client_id in members:
            return members
        self.watch.topic_failed(topic, None)  # the broker has not received this member's heartbeat yet
        return None

    def _report_unknown_members(self, topic: str, error: RocketError) -> None:
        self.watch.topic_failed(topic, error)
        text = "members of group %s are not known: %s"
        if is_rejection(error):
            self._limited_log.warning(str(error), text, self.group, error)
        else:  # normal until brokers know this member
            self._limited_log.info(type(error).__name__, text, self.group, error)

    async def find_route(self, queue: MessageQueue) -> None:
        """Look up the route for a queue that the application assigns. Raises as `RouteCache.get`."""
        self.watch.add_queue(queue)
        try:
            await self.client.routes.get(queue.topic)
        except RocketError as error:
            self.watch.queue_failed(queue, error)
            raise

    async def acquire(self, queue: MessageQueue) -> bool:
        """Lock a queue if needed, and start pulling it. Returns whether it is pulled."""
        if self.is_rebalanced and queue in self.releases:
            return False  # a handler of this member still works on it
        await self.releases.wait(queue)  # the application has assigned it again
        self.watch.add_queue(queue)
        if (other := self._acquiring.get(queue)) is not None:  # an earlier call, such as of another `assign`
            await asyncio.wait({other})
            return queue in self.pullers
        self._acquiring[queue] = finished = asyncio.get_running_loop().create_future()
        try:
            return await self._lock_and_pull(queue)
        finally:
            del self._acquiring[queue]
            finished.set_result(None)

    async def _lock_and_pull(self, queue: MessageQueue) -> bool:
        now_ms, is_locked = int(self.client.now_ms()), None
        if queue.queue_id == ANY_QUEUE:
            if not self.closing and queue.topic in self.subscriptions:
                self.start_pulling(queue, 0)
            return True
        try:
            if self._shares_queues:
                is_locked = await self.locks.lock(queue)
                if is_locked is False:
                    if self._must_wait(queue):
                        return False
                    is_locked = await self.locks.take_over(queue, self._handover.gone_owners(queue))
            offset = await self._start_offsets.of(queue)
            if not self.closing and (not self.is_rebalanced or queue.topic in self.subscriptions):
                self._handover.acquired(queue)
                self.start_pulling(queue, offset, locked_ms=now_ms if is_locked else None)
                return True
        except RocketError as error:
            self.watch.queue_failed(queue, error)
            self._limited_log.warning(str(error), "%s cannot be acquired yet: %s", queue, error)
        if is_locked:
            await self.locks.unlock([queue])  # otherwise no member could lock it until the lock expires
        return False

    def _must_wait(self, queue: MessageQueue) -> bool:
        """Return whether to wait for a queue that another member has locked."""
        self.watch.queue_failed(queue, "another member of the group has locked it")
        log.info("%s is still locked by another member of group %s", queue, self.group)
        return self._handover.must_wait(queue, self.client.now_ms()) or self.locks_queues

    def start_pulling(self, queue: MessageQueue, offset: int, *, locked_ms: int | None = None) -> None:
        """Start pulling a queue from an offset. locked_ms: when its broker granted the lock."""
        progress = self.watch.add_queue(queue)
        progress.failed("no pull has ended yet")  # instead of why it could not be acquired before
        puller: Puller
        if queue.queue_id == ANY_QUEUE and self.sharing is not None:
            puller = Popper(self.context, self.sharing, queue, progress)
        else:
            process_queue = ProcessQueue(queue, offset, int(self.client.now_ms()))
            process_queue.locked_ms = locked_ms
            puller = Puller(self.context, process_queue, progress)
        self.pullers[queue] = puller
        puller.start()

    def restart_pulling(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue from another offset immediately; its cached messages are dropped."""
        old = self.pullers[queue]
        old.stop()
        old.process_queue.drop()
        self.start_pulling(queue, offset, locked_ms=old.process_queue.locked_ms)
        self.pullers[queue].paused = old.paused

    def revoke(self, queue: MessageQueue, offset: int | None = None) -> None:
        """Stop pulling a queue, wait for its running handlers, commit its offset and unlock it.

        The wait takes at most `MemberConfig.rebalance_wait_ms`; orderly members wait without a limit. If the
        application assigns queues, nobody waits. offset: committed for the next owner without a wait, as
        after a reset. None: the offset after the handled messages, if the member `stores_offsets`.
        """
        self.watch.queues.pop(queue, None)
        puller = self.pullers.pop(queue, None)
        if puller is not None:
            puller.stop()
            puller.process_queue.drop()
            if isinstance(puller, Popper) and self.sharing is not None and self.consume_service is not None:
                releasing = self.sharing.release_revoked(self.consume_service, puller)
                self.tasks.spawn(releasing, f"release messages of {queue.topic}")
            self.releases.begin(puller, self.consume_service, offset, waits=self.is_rebalanced)

    @property
    def _shares_queues(self) -> bool:
        """Whether the queues are shared with other members, and so locked."""
        return self.is_rebalanced and not self.broadcasting

    def _locked(self) -> dict[MessageQueue, Puller]:
        return self.releases.pullers() | self.pullers if self._shares_queues else {}

    # -- offsets ------------------------------------------------------------------------------

    def progress(self) -> dict[MessageQueue, int]:
        """Return the offset to commit, for each assigned queue."""
        return {
            queue: puller.process_queue.commit_offset
            for queue, puller in self.pullers.items()
            if queue.queue_id != ANY_QUEUE
        }

    async def persist(self, *, again: bool = False) -> None:
        """Commit the offsets of the assigned queues, and of those that are being released.

        again: also those that were committed already.
        """
        offsets = self.releases.progress() | self.progress()
        self.watch.committed(await self.offsets.write(offsets, again=again))

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue assigned queues of a topic from other offsets. Results of running handlers are ignored."""
        chosen = {
            queue: offset
            for queue, offset in offsets.items()
            if queue.topic == topic and queue in self.pullers
        }
        log.warning("group %s: offsets of %d queues of %s are reset", self.group, len(chosen), topic)
        if not self.is_rebalanced:
            # The application assigned these queues: a rebalance would not acquire them again.
            for queue, offset in chosen.items():
                self.restart_pulling(queue, offset)
            await self.offsets.write(chosen, again=True)
            return
        for queue, offset in chosen.items():
            progress = self.watch.queues[queue]
            self.revoke(queue, offset)
            self.watch.queues[queue] = progress  # a queue that is reset again and again makes no progress
        if chosen:
            await self.releases.wait(*chosen)
        self.rebalance_soon()

    # -- called by pullers --------------------------------------------------------------------

    def _subscription(self, topic: str) -> SubscriptionData | None:
        """Return the subscription of a topic. A topic whose queues the application assigns has no filter."""
        if self.is_rebalanced:
            return self.subscriptions.get(topic)
        return SubscriptionData(topic=topic, sub_string=ALL)

    def _limits(self) -> Limits:
        return limits_of(self.config, len(self.pullers), self._span_max)

    def _deliver(self, puller: Puller, messages: list[MessageExt], failed: int) -> None:
        if failed:
            self.undecodable += log_undecodable(messages, log)
        if self.consume_service is not None:
            self.consume_service.submit(puller, messages, failed)

    def _on_offset_illegal(self, puller: Puller, offset: int) -> None:
        queue = puller.process_queue.queue
        if self.pullers.get(queue) is puller:
            puller.stop()
            self.tasks.spawn(self._reset_illegal_offset(puller, offset), f"reset {queue}")

    async def _reset_illegal_offset(self, puller: Puller, offset: int) -> None:
        queue = puller.process_queue.queue
        await asyncio.sleep(self._illegal_offset_backoff.pause_s(queue, self.client.now_ms()))
        if self.pullers.get(queue) is puller:
            await self.reset(queue.topic, {queue: offset})
