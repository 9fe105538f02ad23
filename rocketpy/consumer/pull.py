"""PullConsumer: reads queues from any offset and queries offsets, without joining a group.

Source: RocketMQ 4.6 DefaultMQPullConsumer, MQAdminImpl.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from rocketpy.client.lifecycle import BoundToClient
from rocketpy.client.namespace import own_names
from rocketpy.client.queries import ConsumerQueries
from rocketpy.config import ClientConfig, ConsumerConfig, check_timeout
from rocketpy.consumer.config import check_integer
from rocketpy.consumer.fetch.consumer_api import ConsumerApi, PullResponse, to_pull_response
from rocketpy.consumer.fetch.subscription import ALL, Expression, subscription_data, wanted_messages
from rocketpy.errors import MessageInvalid, RocketError
from rocketpy.hooks import ReceiveEvent, ReceiveListener
from rocketpy.message.decode import decode_pull, log_undecodable
from rocketpy.message.message import MessageExt, check_group
from rocketpy.protocol.bodies import MessageQueue, SubscriptionData
from rocketpy.protocol.headers import PullMessageRequestHeader
from rocketpy.protocol.message.sysflag import PullSysFlag
from rocketpy.results import Health, PullResult, PullStatus
from rocketpy.telemetry.listeners import DormantTelemetry, ListenerFanout
from rocketpy.telemetry.plugin import Telemetry, TelemetryChoice, find_telemetry

log: Final = logging.getLogger("rocketpy.consumer")


class PullConsumer(ConsumerQueries, BoundToClient):
    """Reads messages of a queue from an offset that the application keeps.

        async with PullConsumer("readers", "127.0.0.1:9876") as consumer:
            for queue in await consumer.fetch_queues("Orders"):
                result = await consumer.pull(queue, await consumer.min_offset(queue))

    Methods raise RouteNotFound, TransportError and BrokerError; a failed call may be repeated.

    Args:
        group: Name of the consumer group, which each pull carries.
        namesrv: Address of the name servers, as for `Producer`.
        config: Settings of the consumer.
        client: Settings of the client.
        listeners: Notified of each pull, see `rocketpy.hooks`.
        telemetry: As for `Producer`.
    """

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
        self.group: Final = check_group(group)
        super().__init__(f"consumer {group}", namesrv, client)
        self.config: Final = config or ConsumerConfig()
        self._api: ConsumerApi | None = None
        self._choice = telemetry
        self._listeners = ListenerFanout("receive", log, listeners)
        self._telemetry = DormantTelemetry(None, self._attach)
        self._undecodable = 0

    def __repr__(self) -> str:
        return f"PullConsumer({self.group!r})"

    async def start(self, *, wait: bool = True) -> None:
        """Start the consumer, once; see `Producer.start`."""
        telemetry = find_telemetry(self._choice)
        await super().start(wait=wait)
        self._telemetry = DormantTelemetry(telemetry, self._attach)
        self._telemetry.check()

    def _attach(self, telemetry: Telemetry) -> None:
        self._listeners.add(telemetry.receive_listener(self._namespace))

    def health(self) -> Health:
        """Return the state of the connections and the number of undecodable messages. Raises ClientClosed."""
        return replace(super().health(), undecodable=self._undecodable)

    async def fetch_topics(self) -> tuple[str, ...]:
        """Return the topics of applications, sorted; with a namespace, those in it.

        Topics that brokers create themselves are left out, including those of retries and dead letters.
        """
        return own_names(self._namespace, await self._running_client().topics())

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        timeout_ms: int | None = None,
        *,
        expression: Expression = ALL,
    ) -> PullResult:
        """Read messages of a queue, beginning at an offset.

        A message that cannot be decoded is returned with its raw body and `MessageExt.decode_error`.
        Compressed bodies are decompressed up to `ConsumerConfig.max_body_bytes` together; `next_offset` leads
        to the rest.

        Args:
            queue: The queue to read.
            offset: Offset of the first message, 0 or more.
            max_count: Maximum number of messages; a broker may return fewer.
            timeout_ms: `ConsumerConfig.pull_timeout_ms` when None. The time for which the broker may hold the
                pull is added.
            expression: Filter of the messages. A broker that finds no match among some hundred messages
                returns NO_MATCHED_MSG.

        Returns:
            The messages and the next offset; status OFFSET_ILLEGAL for an offset outside of the queue.

        Raises:
            UsageError: An argument is not valid.
            RecordCorrupt: The record at `offset` has an invalid length.
        """
        name = self._wrap_queue(queue)
        for what, number in (("offset", offset), ("max_count", max_count)):
            check_integer(what, number)
        if timeout_ms is not None:
            check_timeout(timeout_ms)
        self._telemetry.check_if_due()
        pull = self._pull(queue, name, offset, max_count, timeout_ms, expression)
        return await (self._pull_and_notify(pull, queue, name) if self._listeners.all else pull)

    async def pull_records(
        self, queue: MessageQueue, ranges: Sequence[tuple[int, int]], *, expression: Expression = ALL
    ) -> list[PullResponse | RocketError]:
        """Make several pulls of a queue at the same time, for readers that decode many records together.

        Args:
            queue: The queue to read.
            ranges: Offset of the first message and maximum number of messages of each pull.
            expression: As for `pull`. A broker compares only hashes of tags, which may collide.

        Returns:
            For each pull the response, with the bytes of its records, or the error.
        """
        name = self._wrap_queue(queue)
        self._telemetry.check_if_due()
        api, timeout_ms, started_ns = self._broker_api(), self._timeout_ms(None), time.time_ns()
        wanted = subscription_data(queue.topic, expression, 0)
        begun = api.begin_pulls(name, self._pull_header(name, 0, 1, wanted), ranges, timeout_ms)
        responses: list[PullResponse | RocketError] = []
        unreachable: RocketError | None = None
        try:
            for (offset, count), response in zip(ranges, begun, strict=True):
                try:
                    if response is not None:
                        responses.append(to_pull_response(await response, name, offset))
                    elif unreachable is not None:
                        responses.append(unreachable)
                    else:
                        header = self._pull_header(name, offset, count, wanted)
                        responses.append(await api.pull(name, header, timeout_ms))
                except RocketError as error:
                    unreachable = error if response is None else unreachable
                    responses.append(error)
        finally:
            for response in begun:
                if response is not None:
                    response.cancel()
        if self._listeners.all:
            self._notify_of_records(queue, name, ranges, responses, started_ns, wanted.tags_set)
        return responses

    def _notify_of_records(
        self,
        queue: MessageQueue,
        name: MessageQueue,
        ranges: Sequence[tuple[int, int]],
        responses: Sequence[PullResponse | RocketError],
        started_ns: int,
        tags: Collection[str],
    ) -> None:
        for (offset, _), response in zip(ranges, responses, strict=True):
            end: list[MessageExt] | BaseException
            try:
                if isinstance(response, RocketError):
                    raise response
                end = self._pull_result(response, queue, offset, tags).messages
            except RocketError as error:
                end = error
            self._notify(queue, name, started_ns, end)

    def _notify(
        self,
        queue: MessageQueue,
        name: MessageQueue,
        started_ns: int,
        end: list[MessageExt] | BaseException,
    ) -> None:
        client = self._running_client()
        address = client.routes.cached_address(name.topic, name.broker_name)
        event = ReceiveEvent(queue, self.group, client.client_id, started_ns, time.time_ns(), address, end)
        self._listeners.notify(lambda listener: listener.received(event))

    async def _pull_and_notify(
        self, pull: Coroutine[Any, Any, PullResult], queue: MessageQueue, name: MessageQueue
    ) -> PullResult:
        started_ns = time.time_ns()
        end: list[MessageExt] | BaseException
        try:
            result = await pull
            end = result.messages
        except BaseException as error:  # raised again: listeners see every end
            end = error
            raise
        finally:
            self._notify(queue, name, started_ns, end)
        return result

    async def _pull(
        self,
        queue: MessageQueue,
        name: MessageQueue,
        offset: int,
        max_count: int,
        timeout_ms: int | None,
        expression: Expression,
    ) -> PullResult:
        if offset < 0 or max_count < 1:
            raise MessageInvalid(f"offset {offset} must not be negative, max_count {max_count} at least 1")
        wanted = subscription_data(queue.topic, expression, 0)
        header = self._pull_header(name, offset, max_count, wanted)
        response = await self._broker_api().pull(name, header, self._timeout_ms(timeout_ms))
        return self._pull_result(response, queue, offset, wanted.tags_set)

    def _pull_header(
        self, name: MessageQueue, offset: int, max_count: int, wanted: SubscriptionData
    ) -> PullMessageRequestHeader:
        config = self.config
        return PullMessageRequestHeader(
            consumer_group=self._wrap(self.group),
            topic=name.topic,
            queue_id=name.queue_id,
            queue_offset=offset,
            max_msg_nums=max_count,
            sys_flag=PullSysFlag.SUBSCRIPTION | config.suspend * PullSysFlag.SUSPEND,
            commit_offset=0,
            suspend_timeout_millis=config.suspend_timeout_ms if config.suspend else 0,
            sub_version=0,
            subscription=wanted.sub_string,
            expression_type=wanted.expression_type,
        )

    def _timeout_ms(self, timeout_ms: int | None) -> int:
        """Return the timeout of a pull, including the time for which the broker may hold it."""
        config = self.config
        timeout_ms = config.pull_timeout_ms if timeout_ms is None else timeout_ms
        return timeout_ms + (config.suspend_timeout_ms if config.suspend else 0)

    def _pull_result(
        self, response: PullResponse, queue: MessageQueue, offset: int, tags: Collection[str]
    ) -> PullResult:
        header, config = response.header, self.config
        found = decode_pull(
            response.body,
            queue,
            offset,
            header.next_begin_offset,
            topic=self._wrap(queue.topic),
            offset_delta=header.offset_delta,
            max_body_bytes=config.max_body_bytes,
            max_total_bytes=config.max_body_bytes,
            verify=config.verify_checksums,
        )
        messages = [message.with_topic(queue.topic) for message in wanted_messages(found.messages, tags)]
        if found.undecodable:
            self._undecodable += log_undecodable(messages, log)
        return PullResult(
            response.status,
            found.next_offset,
            header.min_offset,
            header.max_offset,
            messages if response.status is PullStatus.FOUND else [],
            header.suggest_which_broker_id,
        )

    async def check_filter(self, topic: str, expression: Expression) -> None:
        """Let every broker of a topic compile a filter, so that a mistake is found before the first pull.

        Raises:
            BrokerError: A broker rejects the filter; the remark has the reason.
            ConfigInvalid: The expression is not valid.
        """
        subscription = subscription_data(topic, expression, 0)
        subscription.topic = self._wrap(topic)
        await self._broker_api().check_subscription(subscription)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None when there is none."""
        return await self._broker_api().committed_offset(self._wrap_queue(queue))

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset of a queue and wait for the response.

        `committed` and monitoring tools read it; `pull` does not use it.

        Args:
            queue: The queue.
            offset: The offset of the next message to process.

        Raises:
            UsageError: The offset is not an integer.
        """
        check_integer("offset", offset)
        await self._broker_api().commit(self._wrap_queue(queue), offset)

    # -- internals ----------------------------------------------------------------------------

    @property
    def _namespace(self) -> str:
        return self._running_client().config.namespace

    def _broker_api(self) -> ConsumerApi:
        client = self._running_client()
        if self._api is None:
            self._api = ConsumerApi(client, self._wrap(self.group), self.config.pull_timeout_ms)
        return self._api

    def _decoding(self) -> tuple[int, bool]:
        return self.config.max_body_bytes, self.config.verify_checksums
