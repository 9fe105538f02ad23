"""The methods of the asyncio clients, in classes that wait for their results.

Written by python -m tools.blocking_clients --write; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Final, TypeVar, Unpack

from rocketpy.admin import (
    accounts,
    admin_client,
    brokers,
    dead_letters,
    groups,
    messages,
    name_servers,
    topics,
)
from rocketpy.admin.accounts import AccessRules, Policy, RulesVersion, User
from rocketpy.admin.brokers import BrokerStatistic, BrokerSummary, ProducerMember
from rocketpy.admin.dead_letters import DeadLetters, ResendProgress
from rocketpy.admin.drain import DrainPlan, DrainProgress
from rocketpy.admin.group_settings import GroupChanges, GroupSettings
from rocketpy.admin.groups import GroupLag, GroupSummary, Member
from rocketpy.admin.messages import Delivery, MessageTrack
from rocketpy.admin.reset import OffsetChange, ResetTo
from rocketpy.admin.topics import TopicDescription
from rocketpy.admin.traces import Traces
from rocketpy.client import admin, lifecycle, queries
from rocketpy.client.message_index import FOREVER_MS, QueryResult
from rocketpy.client.routing.selectors import QueueSelector
from rocketpy.client.topic_configs import Permission, TopicSettings
from rocketpy.config import ClientConfig, ConsumerConfig, ProducerConfig
from rocketpy.consumer import group_consumer, lite_pull, pull, push, simple
from rocketpy.consumer.config import LitePullConfig, PushConfig, SimpleConfig
from rocketpy.consumer.fetch.consumer_api import PullResponse
from rocketpy.consumer.fetch.subscription import ALL, Expression
from rocketpy.consumer.outcomes import BatchHandler, Handler
from rocketpy.consumer.simple import DEFAULT_INVISIBLE, DEFAULT_WAIT
from rocketpy.errors import RocketError
from rocketpy.hooks import ProcessListener, ReceiveListener, SendCheck, SendListener
from rocketpy.message.encoded import EncodedBatch
from rocketpy.message.message import DEFAULT_TOPIC, TRACE_TOPIC, Message, MessageExt
from rocketpy.producer import producer
from rocketpy.protocol.bodies import ConsumerRunningInfo, MessageQueue
from rocketpy.results import PullResult, SendResult
from rocketpy.sync.blocking import Blocking, BlockingPart
from rocketpy.sync.loop_thread import as_coroutine
from rocketpy.telemetry.plugin import TelemetryChoice

_Queries = TypeVar("_Queries", bound=queries.Queries)


class Queries(Blocking[_Queries]):
    """The methods of `rocketpy.client.queries.Queries`, which describes them in full."""

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return where to begin to read all messages stored at or after a time, in ms since 1970."""
        return self._run(self._inner.search_offset(queue, timestamp_ms))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset that can still be read."""
        return self._run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue, *, of_master: bool = False) -> int:
        """Return the offset that the next message will get."""
        return self._run(self._inner.max_offset(queue, of_master=of_master))

    def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, in ms since 1970; -1 for an empty queue."""
        return self._run(self._inner.earliest_message_store_time(queue))

    def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Return one message by its id."""
        return self._run(self._inner.view_message(message_id, topic))

    def query_message(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """Return the messages of a topic that have a key, from every broker of the topic."""
        return self._run(self._inner.query_message(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms))


_AdminApi = TypeVar("_AdminApi", bound=admin.AdminApi)


class AdminApi(Queries[_AdminApi]):
    """The methods of `rocketpy.client.admin.AdminApi`, which describes them in full."""

    def fetch_publish_message_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that messages of a topic may be sent to, from the name server's current route."""
        return self._run(self._inner.fetch_publish_message_queues(topic))

    def create_topic(
        self, topic: str, queue_count: int = 4, *, key: str = DEFAULT_TOPIC, topic_sys_flag: int = 0
    ) -> dict[str, TopicSettings]:
        """Create a topic on the brokers that lack it; return when the name server knows it."""
        return self._run(self._inner.create_topic(topic, queue_count, key=key, topic_sys_flag=topic_sys_flag))


class Producer(AdminApi[producer.Producer]):
    """The methods of `rocketpy.producer.producer.Producer`, which describes them in full."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[SendListener] = (),
        checks: Iterable[SendCheck] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            producer.Producer(
                group,
                namesrv,
                config=config,
                client=client,
                listeners=listeners,
                checks=checks,
                telemetry=telemetry,
            )
        )
        self.group: Final = self._inner.group
        self.config: Final = self._inner.config

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait for the broker's response."""
        return self._run(
            self._inner.send(message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms)
        )

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in few requests."""
        return self._run(self._inner.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def send_encoded(
        self, batch: EncodedBatch, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> Sequence[SendResult]:
        """Do what `send_batch` does with messages that are already encoded, for integrations."""
        return self._run(self._inner.send_encoded(batch, queue=queue, timeout_ms=timeout_ms))

    def recall(self, topic: str, handle: str) -> str:
        """Take a message back that is not due yet: consumers will not get it."""
        return self._run(self._inner.recall(topic, handle))

    def request(
        self,
        message: Message,
        *,
        timeout_ms: int = 3000,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of a consumer, which uses `create_reply_message`."""
        return self._run(
            self._inner.request(message, timeout_ms=timeout_ms, queue=queue, selector=selector, arg=arg)
        )


_ConsumerQueries = TypeVar("_ConsumerQueries", bound=queries.ConsumerQueries)


class ConsumerQueries(Queries[_ConsumerQueries]):
    """The methods of `rocketpy.client.queries.ConsumerQueries`, which describes them in full."""

    def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic, from a fresh route of the name server."""
        return self._run(self._inner.fetch_queues(topic))


_GroupConsumer = TypeVar("_GroupConsumer", bound=group_consumer.GroupConsumer)


class GroupConsumer(ConsumerQueries[_GroupConsumer]):
    """The methods of `rocketpy.consumer.group_consumer.GroupConsumer`, which describes them in full."""

    def close(self) -> bool:
        """Stop handling, wait for running handlers, commit offsets, leave the group and disconnect."""
        return self._close(self._inner.close())

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Subscribe to a topic, before or after the start."""
        self._configure(as_coroutine(self._inner.subscribe, topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        self._configure(as_coroutine(self._inner.unsubscribe, topic))

    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are assigned to this member; for a push consumer also those of the retry topic
        (``%RETRY%``).
        """
        return self._run(as_coroutine(lambda: self._inner.assignment))

    def running_info(self) -> ConsumerRunningInfo:
        """Return what ``mqadmin consumerStatus`` shows for this member."""
        return self._run(as_coroutine(self._inner.running_info))


class PushConsumer(GroupConsumer[push.PushConsumer]):
    """The methods of `rocketpy.consumer.push.PushConsumer`, which describes them in full."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        config: PushConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[ProcessListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            push.PushConsumer(
                group,
                namesrv,
                handler,
                batch_handler=batch_handler,
                config=config,
                client=client,
                listeners=listeners,
                telemetry=telemetry,
            )
        )
        self.group: Final = self._inner.group
        self.config: Final = self._inner.config

    def pause(self) -> None:
        """Stop pulling."""
        self._run(as_coroutine(self._inner.pause))

    def resume(self) -> None:
        """Continue to pull after `pause`."""
        self._run(as_coroutine(self._inner.resume))

    def progress(self) -> dict[MessageQueue, int]:
        """Return the offset to commit for each queue of this member."""
        return self._run(as_coroutine(self._inner.progress))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue of this member from another offset."""
        self._run(self._inner.seek(queue, offset))


class LitePullConsumer(GroupConsumer[lite_pull.LitePullConsumer]):
    """The methods of `rocketpy.consumer.lite_pull.LitePullConsumer`, which describes them in full."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: LitePullConfig | None = None,
        client: ClientConfig | None = None,
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            lite_pull.LitePullConsumer(group, namesrv, config=config, client=client, telemetry=telemetry)
        )
        self.group: Final = self._inner.group
        self.config: Final = self._inner.config

    def close(self) -> bool:
        """Commit offsets (with `auto_commit`), leave the group and disconnect."""
        return self._close(self._inner.close())

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Share a topic's queues with the group's other members."""
        self._configure(as_coroutine(self._inner.subscribe, topic, expression))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues and no others, independent of the group's other members."""
        self._configure(self._inner.assign(queues))

    def when_queues_change(self, topic: str, listener: Callable[[], None]) -> None:
        """Call a function whenever a topic's route has changed; `fetch_queues` returns the new queues."""
        self._run(as_coroutine(self._inner.when_queues_change, topic, listener))

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop pulling these queues and returning their messages; None for all queues of this consumer."""
        self._run(as_coroutine(self._inner.pause, queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue to pull these queues, after `pause`; None for all queues of this consumer."""
        self._run(as_coroutine(self._inner.resume, queues))

    def poll(self, timeout_ms: int | None = None, *, max_count: int | None = None) -> list[MessageExt]:
        """Return the next messages; an empty list when none arrives in time."""
        return self._run(self._inner.poll(timeout_ms, max_count=max_count))

    def getmany(
        self, timeout_ms: int | None = None, *, max_count: int | None = None
    ) -> dict[MessageQueue, list[MessageExt]]:
        """Return the next messages as `poll` does, but by queue; empty when none arrives in time."""
        return self._run(self._inner.getmany(timeout_ms, max_count=max_count))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets and wait for the responses."""
        self._run(self._inner.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None when there is none."""
        return self._run(self._inner.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue that `poll` will return."""
        return self._run(as_coroutine(self._inner.position, queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue of this consumer from an offset."""
        self._run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue a queue from its first message, as `seek` does."""
        self._run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue from the next message that is stored in it, as `seek` does."""
        self._run(self._inner.seek_to_end(queue))


_BoundToClient = TypeVar("_BoundToClient", bound=lifecycle.BoundToClient)


class BoundToClient(Blocking[_BoundToClient]):
    """The methods of `rocketpy.client.lifecycle.BoundToClient`, which describes them in full."""

    def close(self) -> None:
        """Close the connections, unless other clients share them."""
        self._close(self._inner.close())


class PullConsumer(ConsumerQueries[pull.PullConsumer], BoundToClient[pull.PullConsumer]):
    """The methods of `rocketpy.consumer.pull.PullConsumer`, which describes them in full."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[ReceiveListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            pull.PullConsumer(
                group, namesrv, config=config, client=client, listeners=listeners, telemetry=telemetry
            )
        )
        self.group: Final = self._inner.group
        self.config: Final = self._inner.config

    def fetch_topics(self) -> tuple[str, ...]:
        """Return the topics of applications, sorted; with a namespace, those in it."""
        return self._run(self._inner.fetch_topics())

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        timeout_ms: int | None = None,
        *,
        expression: Expression = ALL,
    ) -> PullResult:
        """Read messages of a queue, beginning at an offset."""
        return self._run(self._inner.pull(queue, offset, max_count, timeout_ms, expression=expression))

    def pull_async(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        timeout_ms: int | None = None,
        *,
        expression: Expression = ALL,
    ) -> Future[PullResult]:
        """Do the same as `pull`, but return the future of the result."""
        return self._loop_thread().submit(
            self._inner.pull(queue, offset, max_count, timeout_ms, expression=expression)
        )

    def pull_records(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]], *, expression: Expression = ALL
    ) -> list[PullResponse | RocketError]:
        """Make several pulls of a queue at the same time, for readers that decode many records together."""
        return self._run(self._inner.pull_records(queue, ranges, expression=expression))

    def pull_records_async(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]], *, expression: Expression = ALL
    ) -> Future[list[PullResponse | RocketError]]:
        """Do the same as `pull_records`, but return the future of the result."""
        return self._loop_thread().submit(self._inner.pull_records(queue, ranges, expression=expression))

    def check_filter(self, topic: str, expression: Expression) -> None:
        """Let every broker of a topic compile a filter, so that a mistake is found before the first pull."""
        self._run(self._inner.check_filter(topic, expression))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None when there is none."""
        return self._run(self._inner.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset of a queue and wait for the response."""
        self._run(self._inner.commit(queue, offset))


class SimpleConsumer(GroupConsumer[simple.SimpleConsumer]):
    """The methods of `rocketpy.consumer.simple.SimpleConsumer`, which describes them in full."""

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: SimpleConfig | None = None,
        client: ClientConfig | None = None,
        listeners: Iterable[ReceiveListener] = (),
        telemetry: TelemetryChoice = None,
    ) -> None:
        super().__init__(
            simple.SimpleConsumer(
                group, namesrv, config=config, client=client, listeners=listeners, telemetry=telemetry
            )
        )
        self.group: Final = self._inner.group
        self.config: Final = self._inner.config

    def receive(
        self, max_messages: int = 1, invisible: timedelta = DEFAULT_INVISIBLE, wait: timedelta = DEFAULT_WAIT
    ) -> list[MessageExt]:
        """Receive messages, and hide them from the other members of the group for a while."""
        return self._run(self._inner.receive(max_messages, invisible, wait))

    def ack(self, message: MessageExt) -> None:
        """Acknowledge a message: no member gets it again."""
        self._run(self._inner.ack(message))

    def ack_many(self, messages: Iterable[MessageExt]) -> None:
        """Acknowledge messages together, with one request for each broker."""
        self._run(self._inner.ack_many(messages))

    def extend(self, message: MessageExt, invisible: timedelta) -> None:
        """Hide a message from other members for a time from now on, whether longer or shorter than before."""
        self._run(self._inner.extend(message, invisible))

    def release(self, message: MessageExt, delay: timedelta = timedelta(0)) -> None:
        """Give a message back, so that any member can receive it."""
        self._run(self._inner.release(message, delay))


class Topics(BlockingPart[topics.Topics]):
    """The methods of `rocketpy.admin.topics.Topics`, which describes them in full."""

    def list(self, cluster: str | None = None, *, include_system: bool = False) -> tuple[str, ...]:
        """Return the names of the topics, sorted."""
        return self._run(self._inner.list(cluster, include_system=include_system))

    def describe(self, topic: str, *, cluster: str | None = None) -> TopicDescription:
        """Return settings, offsets and consumer groups of a topic."""
        return self._run(self._inner.describe(topic, cluster=cluster))

    def create(
        self,
        topic: str,
        queues: int = 4,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        perm: Permission = Permission.READ | Permission.WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> dict[str, TopicSettings]:
        """Create a topic on the brokers that lack it; return when a name server knows it."""
        return self._run(
            self._inner.create(
                topic,
                queues,
                cluster=cluster,
                broker=broker,
                perm=perm,
                ordered=ordered,
                attributes=attributes,
            )
        )

    def alter(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: Permission | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change settings of a topic on each of its brokers."""
        self._run(
            self._inner.alter(
                topic,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=perm,
                ordered=ordered,
                attributes=attributes,
            )
        )

    def delete(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages: at the brokers, then at each name server."""
        self._run(self._inner.delete(topic, cluster=cluster))


class Messages(BlockingPart[messages.Messages]):
    """The methods of `rocketpy.admin.messages.Messages`, which describes them in full."""

    def by_id(self, message_id: str) -> MessageExt:
        """Return the message with a broker's id (`MessageExt.offset_message_id`)."""
        return self._run(self._inner.by_id(message_id))

    def by_unique_id(self, topic: str, unique_id: str) -> MessageExt:
        """Return the message of a topic with a unique id (`MessageExt.message_id`)."""
        return self._run(self._inner.by_unique_id(topic, unique_id))

    def by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """Return the messages of a topic that have a key."""
        return self._run(self._inner.by_key(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms))

    def by_offset(self, queue: MessageQueue, offset: int) -> MessageExt:
        """Return the message at an offset of a queue."""
        return self._run(self._inner.by_offset(queue, offset))

    def by_time(self, topic: str, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> Iterator[MessageExt]:
        """Yield the messages of a topic that were stored between two times."""
        return self._iterate(self._inner.by_time(topic, begin_ms, end_ms))

    def of_queue(self, queue: MessageQueue, begin: int = 0, end: int | None = None) -> Iterator[MessageExt]:
        """Yield the messages of a queue in the order of their offsets, without those that arrive later."""
        return self._iterate(self._inner.of_queue(queue, begin, end))

    def traces(self, key: str, *, topic: str = TRACE_TOPIC, max_count: int = 64) -> Traces:
        """Return who sent the messages with a unique id or key, who consumed them, and with what result."""
        return self._run(self._inner.traces(key, topic=topic, max_count=max_count))

    def consumers_of(self, message: MessageExt) -> tuple[MessageTrack, ...]:
        """Return what each group that consumes the topic of a message did with it, sorted by group."""
        return self._run(self._inner.consumers_of(message))

    def deliver(self, message: MessageExt, group: str, client_id: str) -> Delivery:
        """Have one consumer handle a message now, independent of its offset, and wait for the result."""
        return self._run(self._inner.deliver(message, group, client_id))

    def resend(
        self, message: MessageExt, *, topic: str | None = None, group: str | None = None
    ) -> SendResult:
        """Send a copy of a message: to its topic, to another one, or to one group."""
        return self._run(self._inner.resend(message, topic=topic, group=group))


class DeadLetterQueues(BlockingPart[dead_letters.DeadLetterQueues]):
    """The methods of `rocketpy.admin.dead_letters.DeadLetterQueues`, which describes them in full."""

    def groups(self) -> tuple[str, ...]:
        """Return the groups with a dead-letter topic, sorted."""
        return self._run(self._inner.groups())

    def count(self, group: str) -> int:
        """Return the number of dead letters of a group."""
        return self._run(self._inner.count(group))

    def fetch(
        self,
        group: str,
        max_count: int = 1000,
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
        make_readable: bool = True,
    ) -> DeadLetters:
        """Read the dead letters of a group: the messages in its topic ``%DLQ%group``."""
        return self._run(self._inner.fetch(group, max_count, offsets=offsets, make_readable=make_readable))

    def read(self, group: str, *, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> Iterator[MessageExt]:
        """Yield the dead letters of a group that exist now, one queue after the other."""
        return self._iterate(self._inner.read(group, begin_ms=begin_ms, end_ms=end_ms))

    def resend(self, message: MessageExt) -> SendResult:
        """Send a dead letter to its group again, and to no other group, as if it had never failed."""
        return self._run(self._inner.resend(message))

    def resend_all(
        self,
        group: str,
        *,
        wanted: Callable[[MessageExt], bool] | None = None,
        offsets: Mapping[MessageQueue, int] | None = None,
        on_progress: Callable[[ResendProgress], object] | None = None,
    ) -> ResendProgress:
        """Send the dead letters of a group that exist now to it again."""
        return self._run(
            self._inner.resend_all(group, wanted=wanted, offsets=offsets, on_progress=on_progress)
        )


class Brokers(BlockingPart[brokers.Brokers]):
    """The methods of `rocketpy.admin.brokers.Brokers`, which describes them in full."""

    def list(self, cluster: str | None = None) -> tuple[BrokerSummary, ...]:
        """Return every broker that a name server knows, sorted by cluster, name and id."""
        return self._run(self._inner.list(cluster))

    def runtime(self, address: str) -> dict[str, str]:
        """Return the runtime info of a broker: texts by RocketMQ's names, such as ``msgPutTotalTodayNow``."""
        return self._run(self._inner.runtime(address))

    def config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker by their names in broker.conf."""
        return self._run(self._inner.config(address))

    def set_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        self._run(self._inner.set_config(address, changes))

    def stats(self, address: str, name: str, key: str) -> BrokerStatistic:
        """Return a statistic of a broker."""
        return self._run(self._inner.stats(address, name, key))

    def producers(self, group: str) -> tuple[ProducerMember, ...]:
        """Return the producers of a group that are online, sorted by client id; none for an unknown group."""
        return self._run(self._inner.producers(group))

    def wipe_write_permission(self, broker: str) -> int:
        """Have every name server hide a broker from producers, for instance before it is stopped."""
        return self._run(self._inner.wipe_write_permission(broker))

    def add_write_permission(self, broker: str) -> int:
        """Undo `wipe_write_permission`."""
        return self._run(self._inner.add_write_permission(broker))

    def plan_drain(self, broker: str) -> DrainPlan:
        """Return what `drain` would do, and change nothing."""
        return self._run(self._inner.plan_drain(broker))

    def drain(
        self,
        broker: str,
        *,
        wait_ms: float = 35000,
        quiet_ms: float = 5000,
        on_progress: Callable[[DrainProgress], object] | None = None,
    ) -> DrainPlan:
        """Move producers from a broker to others; return when it can be stopped without a failed send."""
        return self._run(
            self._inner.drain(broker, wait_ms=wait_ms, quiet_ms=quiet_ms, on_progress=on_progress)
        )

    def clean_expired_queues(self, cluster: str | None = None) -> None:
        """Have every master delete the queues whose messages have all expired."""
        self._run(self._inner.clean_expired_queues(cluster))

    def clean_unused_topics(self, cluster: str | None = None) -> None:
        """Have every master delete the queues of topics that do not exist any more."""
        self._run(self._inner.clean_unused_topics(cluster))


class NameServers(BlockingPart[name_servers.NameServers]):
    """The methods of `rocketpy.admin.name_servers.NameServers`, which describes them in full."""

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key; None if the key does not exist."""
        return self._run(self._inner.get(namespace, key))

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace; an unknown namespace has none."""
        return self._run(self._inner.namespace(namespace))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key at every name server."""
        self._run(self._inner.put(namespace, key, value))

    def delete(self, namespace: str, key: str) -> None:
        """Delete a key at every name server; a missing key is not an error."""
        self._run(self._inner.delete(namespace, key))

    def config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server, by its address."""
        return self._run(self._inner.config())

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of every name server."""
        self._run(self._inner.set_config(changes))


class Accounts(BlockingPart[accounts.Accounts]):
    """The methods of `rocketpy.admin.accounts.Accounts`, which describes them in full."""

    def list(self, cluster: str | None = None) -> dict[str, AccessRules]:
        """Return the rules of each broker."""
        return self._run(self._inner.list(cluster))

    def versions(self, cluster: str | None = None) -> dict[str, RulesVersion]:
        """Return the version of each broker's rules, which rises with each change."""
        return self._run(self._inner.versions(cluster))

    def put(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool | None = None,
        white_address: str | None = None,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: Mapping[str, str] | None = None,
        group_perms: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Add an account, or change an existing one."""
        self._run(
            self._inner.put(
                access_key,
                secret_key,
                admin=admin,
                white_address=white_address,
                default_topic_perm=default_topic_perm,
                default_group_perm=default_group_perm,
                topic_perms=topic_perms,
                group_perms=group_perms,
                cluster=cluster,
            )
        )

    def delete(self, access_key: str, *, cluster: str | None = None) -> None:
        """Delete an account."""
        self._run(self._inner.delete(access_key, cluster=cluster))

    def set_white_addresses(self, addresses: Iterable[str], *, cluster: str | None = None) -> None:
        """Replace the addresses from which no request needs a signature, such as ``192.168.0.*``."""
        self._run(self._inner.set_white_addresses(addresses, cluster=cluster))

    def users(self, cluster: str | None = None) -> dict[str, dict[str, User]]:
        """Return the users of each broker, by name."""
        return self._run(self._inner.users(cluster))

    def put_user(
        self,
        name: str,
        password: str | None = None,
        *,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        cluster: str | None = None,
    ) -> None:
        """Add a user, or change an existing one."""
        self._run(
            self._inner.put_user(name, password, is_super=is_super, is_enabled=is_enabled, cluster=cluster)
        )

    def delete_user(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a user and its policies; nothing happens where it does not exist."""
        self._run(self._inner.delete_user(name, cluster=cluster))

    def policies(
        self, user: str | None = None, *, cluster: str | None = None
    ) -> dict[str, tuple[Policy, ...]]:
        """Return the policies of each broker."""
        return self._run(self._inner.policies(user, cluster=cluster))

    def put_policy(self, policy: Policy, *, cluster: str | None = None) -> None:
        """Add a policy."""
        self._run(self._inner.put_policy(policy, cluster=cluster))

    def delete_policies(
        self, user: str, resource: str | None = None, *, is_default: bool = False, cluster: str | None = None
    ) -> None:
        """Delete the policy for a resource, or all policies of a user if `resource` is None."""
        self._run(self._inner.delete_policies(user, resource, is_default=is_default, cluster=cluster))

    def copy_users(self, source: str, target: str) -> tuple[str, ...]:
        """Copy all users with their policies from one broker to another, such as a new slave."""
        return self._run(self._inner.copy_users(source, target))


class Groups(BlockingPart[groups.Groups]):
    """The methods of `rocketpy.admin.groups.Groups`, which describes them in full."""

    def list(self, cluster: str | None = None, *, include_system: bool = False) -> tuple[GroupSummary, ...]:
        """Return the consumer groups, sorted by name."""
        return self._run(self._inner.list(cluster, include_system=include_system))

    def create(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        **settings: Unpack[GroupChanges],
    ) -> dict[str, GroupSettings]:
        """Create a consumer group on the brokers that lack it."""
        return self._run(self._inner.create(group, cluster=cluster, broker=broker, **settings))

    def alter(self, group: str, **changes: Unpack[GroupChanges]) -> None:
        """Change settings of a consumer group on each broker that has it."""
        self._run(self._inner.alter(group, **changes))

    def delete(self, group: str, *, cluster: str | None = None, keep_topics: bool = False) -> None:
        """Delete a consumer group, with its retry topic and dead letters."""
        self._run(self._inner.delete(group, cluster=cluster, keep_topics=keep_topics))

    def members(self, group: str, *, cluster: str | None = None) -> tuple[Member, ...]:
        """Return the members of a group that are online, sorted by client id; none for an unknown group."""
        return self._run(self._inner.members(group, cluster=cluster))

    def conflicts(self, group: str, *, cluster: str | None = None) -> tuple[str, ...]:
        """Return how the members of a group differ that are online, a text for each difference."""
        return self._run(self._inner.conflicts(group, cluster=cluster))

    def lag(
        self, group: str, topic: str | None = None, *, cluster: str | None = None, with_clients: bool = False
    ) -> GroupLag:
        """Return the progress of a group in each of its queues."""
        return self._run(self._inner.lag(group, topic, cluster=cluster, with_clients=with_clients))

    def reset(
        self, group: str, topic: str, to: ResetTo, *, dry_run: bool = False
    ) -> dict[MessageQueue, OffsetChange]:
        """Reset the offsets of a group in a topic; return the changes by queue."""
        return self._run(self._inner.reset(group, topic, to, dry_run=dry_run))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give a group the offsets of another group in a topic."""
        self._run(self._inner.clone(source, target, topic))


class AdminClient(AdminApi[admin_client.AdminClient], BoundToClient[admin_client.AdminClient]):
    """The methods of `rocketpy.admin.admin_client.AdminClient`, which describes them in full."""

    def __init__(self, namesrv: str | None = None, *, client: ClientConfig | None = None) -> None:
        super().__init__(admin_client.AdminClient(namesrv, client=client))
        self.topics: Topics = Topics(self._inner.topics, self._loop_thread)
        self.messages: Messages = Messages(self._inner.messages, self._loop_thread)
        self.dead_letters: DeadLetterQueues = DeadLetterQueues(self._inner.dead_letters, self._loop_thread)
        self.brokers: Brokers = Brokers(self._inner.brokers, self._loop_thread)
        self.name_servers: NameServers = NameServers(self._inner.name_servers, self._loop_thread)
        self.accounts: Accounts = Accounts(self._inner.accounts, self._loop_thread)
        self.groups: Groups = Groups(self._inner.groups, self._loop_thread)
