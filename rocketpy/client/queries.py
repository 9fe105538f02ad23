"""Queries: offsets of queues, and messages by id and by key.

Every producer, consumer and admin client has them.

Source: RocketMQ 4.6 MQAdmin, MQAdminImpl.
"""

from __future__ import annotations

from typing import Final

from rocketpy.client.broker_api import MAX_BODY_BYTES, BrokerApi
from rocketpy.client.lifecycle import Client
from rocketpy.client.message_index import FOREVER_MS, MessageIndex, QueryResult
from rocketpy.client.namespace import wrap, wrap_queue
from rocketpy.client.routing.routes import subscribe_queues
from rocketpy.errors import BrokerError, RocketError
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import ResponseCode

QUERY_TIMEOUT_MS: Final = 6000
"""RocketMQ: MQAdminImpl timeoutMillis."""


class Queries(Client):
    """Queries. Every method raises ClientClosed, RouteNotFound, TransportError and BrokerError."""

    # -- offsets ------------------------------------------------------------------------------

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return where to begin to read all messages stored at or after a time, in ms since 1970.

        It is the offset of the first such message, or the end of the queue if there is none. With a broker of
        RocketMQ before 5.1.1 it may be lower, but never higher.
        """
        return await self._broker_api().search_offset(self._wrap_queue(queue), timestamp_ms)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset that can still be read."""
        return await self._broker_api().min_offset(self._wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue, *, of_master: bool = False) -> int:
        """Return the offset that the next message will get.

        Args:
            queue: The queue.
            of_master: Only the master may respond; RouteNotFound is raised while it is unavailable. If False,
                a slave responds then, which may lag behind.
        """
        return await self._broker_api().max_offset(self._wrap_queue(queue), of_master=of_master)

    async def earliest_message_store_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, in ms since 1970; -1 for an empty queue."""
        return await self._broker_api().earliest_message_store_time(self._wrap_queue(queue))

    # -- messages -----------------------------------------------------------------------------

    async def view_message(self, message_id: str, topic: str | None = None) -> MessageExt:
        """Return one message by its id.

        Without a topic, `message_id` is the broker's id (`SendResult.offset_message_id`). The message comes
        from the broker in the id, or from a replica while that broker is unavailable.

        With a topic, `message_id` is the unique id from the producer (`SendResult.message_id`). If no message
        of the topic has that unique id, it is looked up as a broker's id. When a repeated send stored several
        messages with one unique id, the first is returned.

        A message that cannot be decoded has its raw body and `MessageExt.decode_error`. Differs from
        RocketMQ, which reads a unique id as a broker's id first, and connects to the address in it.

        Args:
            message_id: The id.
            topic: The topic of the message, to find it by its unique id.

        Raises:
            MessageInvalid: The id is malformed.
            BrokerError: There is no such message.
        """
        if topic is None:
            return await self._view_by_offset(message_id)
        found = await self._index().by_unique_id(topic, message_id)
        if found is not None:
            return found
        try:
            return await self._view_by_offset(message_id, only_known=True)
        except RocketError as error:
            raise BrokerError(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message of topic {topic} has id {message_id}",
                "the topic's brokers",
            ) from error

    async def query_message(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> QueryResult:
        """Return the messages of a topic that have a key, from every broker of the topic.

        A broker that does not respond is logged and left out, as long as another one responds. A message that
        cannot be decoded has its raw body and `MessageExt.decode_error`.

        Args:
            topic: The name of the topic.
            key: One of the keys of the messages.
            max_count: The highest number of messages from one broker.
            begin_ms: The earliest store time, in ms since 1970.
            end_ms: The latest store time, in ms since 1970.
        """
        return await self._index().by_key(topic, key, max_count, begin_ms, end_ms)

    async def _view_by_offset(self, message_id: str, *, only_known: bool = False) -> MessageExt:
        max_body_bytes, verify = self._decoding()
        return await self._broker_api().view_message(
            message_id, max_body_bytes=max_body_bytes, verify=verify, only_known=only_known
        )

    def _index(self) -> MessageIndex:
        max_body_bytes, verify = self._decoding()
        client = self._running_client()
        return MessageIndex(client, partial=True, max_body_bytes=max_body_bytes, verify=verify)

    # -- internals ----------------------------------------------------------------------------

    def _wrap(self, name: str) -> str:
        """Return the name of a topic or group with the namespace."""
        return wrap(self._running_client().config.namespace, name)

    def _wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return wrap_queue(self._running_client().config.namespace, queue)

    def _broker_api(self) -> BrokerApi:
        return BrokerApi(self._running_client(), QUERY_TIMEOUT_MS)

    def _decoding(self) -> tuple[int, bool]:
        """Return the limit of a decompressed body in bytes, and whether to verify checksums."""
        return MAX_BODY_BYTES, True


class ConsumerQueries(Queries):
    """The queries of consumers."""

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic, from a fresh route of the name server."""
        return subscribe_queues(topic, await self._running_client().routes.get(self._wrap(topic), fresh=True))
