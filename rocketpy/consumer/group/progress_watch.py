"""ProgressWatch: records which work of a group member succeeds, for `health()`. No I/O.

It follows the assignment of each topic's queues, each assigned queue from its assignment to its revocation,
the locks of orderly queues, and the commits of offsets; see `Progress`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from rocketpy.client.instance import ClientInstance
from rocketpy.client.namespace import unwrap, unwrap_queue
from rocketpy.consumer.config import MemberConfig
from rocketpy.consumer.fetch.consumer_api import is_lasting, is_rejection
from rocketpy.consumer.fetch.process_queue import LOCK_INTERVAL_MS
from rocketpy.consumer.fetch.puller import Puller
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import QueueState
from rocketpy.runtime.progress import Progress
from rocketpy.runtime.rate_limited_log import abbreviate


class ProgressWatch:
    """The progress of a member.

    retry_topic: of the group, which its brokers create when they know the group. pullers: of the assigned
    queues that were acquired. is_paused: whether the application has paused the consumer. commits: of the
    commits of offsets; None if they are not automatic.
    """

    def __init__(
        self,
        client: ClientInstance,
        config: MemberConfig,
        retry_topic: str,
        pullers: Mapping[MessageQueue, Puller],
        is_paused: Callable[[], bool],
        *,
        locks_queues: bool,
        commits: bool,
    ) -> None:
        self._client = client
        self._config = config
        self._retry_topic = retry_topic
        self._pullers = pullers
        self._is_paused = is_paused
        self._locks_queues = locks_queues
        self._topics: dict[str, Progress] = {}
        self._unrouted: set[str] = set()
        """Those of `_topics` whose route is not known."""
        self._filters: dict[str, Progress] = {}
        """Rejected filters."""
        self.queues: dict[MessageQueue, Progress] = {}
        """The progress of each assigned queue."""
        self.commits: Progress | None = self._new() if commits else None
        self._failed_commit: str | None = None
        """The failure of the application's last commit, if commits are not automatic."""

    # -- topics -------------------------------------------------------------------------------

    def add_topic(self, topic: str) -> None:
        """Follow a topic that is subscribed, perhaps with another filter than before."""
        self._filters.pop(topic, None)
        if topic not in self._topics:
            self._topics[topic] = self._new()
            self.no_route(topic)

    def remove_topic(self, topic: str) -> None:
        """Forget a topic that was unsubscribed."""
        self._filters.pop(topic, None)
        self._topics.pop(topic, None)
        self._unrouted.discard(topic)

    def no_route(self, topic: str, error: RocketError | None = None) -> None:
        """Record that a topic has no route. error: of the look-up, if it has failed."""
        self._unrouted.add(topic)
        self._fail_topic(topic, no_route(self._own_name(topic), error), lasts=topic != self._retry_topic)

    def has_route(self, topic: str) -> None:
        """Record that the route of a topic is known. Any later step that has failed stays a problem."""
        if topic in self._unrouted:
            self._unrouted.discard(topic)
            self._fail_topic(topic, "the members of the group are not known yet")

    def topic_failed(self, topic: str, error: RocketError | None) -> None:
        """Record that the group's members are not known. error: None if their list lacks this one."""
        text = "the brokers' list of the group's members lacks this one"
        if error is not None:
            text = reason_of("the members of the group are not known", error)
        self._fail_topic(topic, text, error=error)

    def strategy_failed(self, topic: str, error: Exception) -> None:
        """Record that the allocation strategy has raised."""
        reason = (
            str(error) if isinstance(error, RocketError) else f"the allocation strategy failed: {error!r}"
        )
        self._fail_topic(topic, reason, lasts=True)

    def topic_assigned(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        acquiring: Collection[MessageQueue],
    ) -> None:
        """Record that this member's share of a topic is known.

        queues: of the topic. acquiring: assigned queues that were not acquired yet.
        """
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            if queue not in self._pullers and queue not in acquiring:
                del self.queues[queue]  # another member has it now
        if not queues:
            text = f"topic {self._own_name(topic)} has no queue with read permission"
            self._fail_topic(topic, text, lasts=True)
        elif (progress := self._topics.get(topic)) is not None:
            progress.succeeded(self._client.now_ms())

    def filter_checked(self, topic: str, error: RocketError | None) -> None:
        """Record whether brokers accept the filter of a topic."""
        if error is None:
            self._filters.pop(topic, None)
        else:
            progress = self._filters[topic] = self._new()
            progress.failed(f"rejected: {error}", is_lasting=True)

    def _fail_topic(
        self, topic: str, reason: str, *, lasts: bool = False, error: RocketError | None = None
    ) -> None:
        progress = self._topics.get(topic)  # None if it was unsubscribed meanwhile
        if progress is not None:
            progress.failed(reason, is_lasting=lasts or (error is not None and is_lasting(error)))

    # -- queues -------------------------------------------------------------------------------

    def add_queue(self, queue: MessageQueue) -> Progress:
        """Return the progress of a queue, which is assigned from now on."""
        return self.queues.setdefault(queue, self._new())

    def queue_failed(self, queue: MessageQueue, error: RocketError | str) -> None:
        """Record that a queue was not acquired."""
        _fail(self.queues.get(queue), f"{queue} cannot be acquired", error)

    def lock_failed(self, queue: MessageQueue, error: RocketError | str) -> None:
        """Record that the lock of a queue was not renewed."""
        puller = self._pullers.get(queue)
        if puller is not None:
            _fail(puller.process_queue.lock, "its lock was not renewed", error)

    def committed(self, error: Exception | None) -> None:
        """Record whether offsets were stored: those of all queues, or those that the application commits."""
        if self.commits is None:
            self._failed_commit = None if error is None else f"the last commit of offsets failed: {error}"
        elif error is None:
            self.commits.succeeded(self._client.now_ms())
        else:
            self.commits.failed(str(error))

    # -- for `health()` -----------------------------------------------------------------------

    def states(self) -> dict[MessageQueue, QueueState]:
        """Return the state of each assigned queue."""
        now_ms = self._client.now_ms()
        return {queue: self._state(queue, now_ms) for queue in self.queues}

    def _state(self, queue: MessageQueue, now_ms: float) -> QueueState:
        puller = self._pullers.get(queue)
        if self._is_paused() or (puller is not None and puller.is_paused):
            return QueueState.PAUSED
        if self._stalled(queue, now_ms) is not None:
            return QueueState.STALLED
        return QueueState.FULL if puller is not None and puller.is_waiting else QueueState.READING

    def problems(self) -> list[str]:
        """Return what does not succeed. Queues with the same reason share a text."""
        now_ms, limit_ms, config = self._client.now_ms(), self._limit_ms, self._config
        found = [progress.reason for progress in self._filters.values()]
        for topic, progress in self._topics.items():
            text = f"this member's queues of topic {self._own_name(topic)} are not known"
            found.append(progress.problem(now_ms, limit_ms + config.rebalance_interval_ms, text))
        by_reason: dict[str | None, list[tuple[MessageQueue, Progress]]] = {}
        for queue in self.queues:
            if (stalled := self._stalled(queue, now_ms)) is not None:
                by_reason.setdefault(stalled.reason, []).append((queue, stalled))
        for queues in by_reason.values():
            names = [unwrap_queue(self._client.config.namespace, queue) for queue, _ in queues]
            text = f"no request for {abbreviate(names)} has succeeded"
            oldest = min((stalled for _, stalled in queues), key=lambda stalled: stalled.since_ms)
            found.append(oldest.problem(now_ms, limit_ms, text))
        if self.commits is not None:
            text = "no commit of all offsets has succeeded"
            found.append(self.commits.problem(now_ms, limit_ms + config.persist_interval_ms, text))
        found.append(self._failed_commit)
        return list(dict.fromkeys(text for text in found if text))

    def _stalled(self, queue: MessageQueue, now_ms: float) -> Progress | None:
        """Return the progress of what stops a queue: its acquisition or its pulls, or else its lock."""
        puller = self._pullers.get(queue)
        if self._is_paused() or (puller is not None and puller.is_paused):
            return None
        parts = []
        if puller is None or not puller.is_waiting:
            parts.append(self.queues[queue])
        if puller is not None and self._locks_queues:
            parts.append(puller.process_queue.lock)
        return next((part for part in parts if part.is_stalled(now_ms, self._limit_ms)), None)

    @property
    def _limit_ms(self) -> float:
        """The setting, but at least the longest time between two successes without trouble."""
        between_ms = self._config.pull_timeout_ms + self._config.pull_interval_ms
        locks_ms = 2 * LOCK_INTERVAL_MS if self._locks_queues else 0
        return max(self._client.config.stalled_after_ms, between_ms, locks_ms)

    def _new(self) -> Progress:
        return Progress(self._client.now_ms())

    def _own_name(self, topic: str) -> str:
        return unwrap(self._client.config.namespace, topic)


def no_route(topic: str, error: RocketError | None) -> str:
    """Return in words that a topic has no route. error: of the look-up, if it has failed."""
    text = f"topic {topic} has no route"
    return text if error is None or isinstance(error, RouteNotFound) else reason_of(text, error)


def reason_of(text: str, error: RocketError | str) -> str:
    """Return why something failed, in words. text: what failed, unless a broker has rejected it."""
    return (
        f"rejected: {error}" if isinstance(error, RocketError) and is_rejection(error) else f"{text}: {error}"
    )


def _fail(progress: Progress | None, text: str, error: RocketError | str) -> None:
    if progress is not None:  # None if the queue was revoked meanwhile
        lasts = isinstance(error, RocketError) and is_lasting(error)
        progress.failed(reason_of(text, error), is_lasting=lasts)
