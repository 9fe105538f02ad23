"""Programs of users, for mypy: it fails when a public type no longer fits the guides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import assert_type

import rocketpy.sync
from rocketpy import (
    AdminClient,
    ByMachineRoom,
    ClientConfig,
    CompressionConfig,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    QueryResult,
    QueueSelector,
    RoundRobin,
    SendResult,
    TransactionSendResult,
    by_hash,
    by_random,
    create_reply_message,
)


def by_length(queues: Sequence[MessageQueue], message: Message, arg: int) -> MessageQueue:
    """A selector of one's own."""
    return queues[(len(message.body) + arg) % len(queues)]


async def local(half: Message) -> LocalTransactionState:
    """A local transaction that waits for a database."""
    assert_type(half.transaction_id, str | None)
    return LocalTransactionState.COMMIT


def check(half: MessageExt) -> LocalTransactionState:
    """A check that is a plain function."""
    assert_type(half.transaction_id, str | None)
    return LocalTransactionState.UNKNOWN


async def sends(producer: Producer, message: Message, queue: MessageQueue) -> None:
    """Every way to send."""
    assert_type(await producer.send(message), SendResult)
    assert_type(await producer.send(message, queue=queue, timeout_ms=1000), SendResult)
    assert_type(await producer.send(message, selector=by_length, arg=7), SendResult)
    selectors: list[QueueSelector] = [by_hash, by_random, RoundRobin(), ByMachineRoom(["room1"]), by_length]
    for selector in selectors:
        assert_type(producer.send_nowait(message, selector=selector, arg="x"), asyncio.Future[SendResult])
        producer.send_oneway(message, selector=selector)
    assert_type(await producer.send_batch([message, message]), list[SendResult])


async def transactions(producer: Producer, message: Message) -> None:
    """Coroutines and plain functions."""
    producer.check_transactions(check)
    result = await producer.send_in_transaction(message, local_transaction=local, check=check)
    assert_type(result, TransactionSendResult)
    assert_type(result.state, LocalTransactionState)
    await producer.send_in_transaction(message, local_transaction=lambda _: LocalTransactionState.ROLLBACK)


async def requests(producer: Producer, message: Message) -> None:
    """Both sides of request-reply."""
    reply = await producer.request(message, timeout_ms=3000)
    assert_type(reply, MessageExt)
    assert_type(producer.request_nowait(message, timeout_ms=500), asyncio.Future[MessageExt])
    await producer.send(create_reply_message(reply, b"thanks"))


async def look_ups(asked: Producer | AdminClient, queue: MessageQueue) -> None:
    """Shared methods of producers and admin clients."""
    await asked.create_topic("Orders", 8)
    assert_type(await asked.fetch_publish_message_queues("Orders"), tuple[MessageQueue, ...])
    assert_type(await asked.search_offset(queue, 0), int)
    assert_type(await asked.earliest_message_store_time(queue), int)
    assert_type(await asked.view_message("00", "Orders"), MessageExt)
    found = await asked.query_message("Orders", "42", begin_ms=0)
    assert_type(found, QueryResult)
    assert_type(found.messages, list[MessageExt])


def blocking(message: Message) -> None:
    """The same without an event loop."""
    config = ProducerConfig(compression=CompressionConfig(type="zlib"))
    with rocketpy.sync.Producer("g", config=config, client=ClientConfig(namespace="t1")) as producer:
        assert_type(producer.send(message, selector=by_hash, arg="x"), SendResult)
        assert_type(producer.send_async(message, lambda done: done.result()), Future[SendResult])
        assert_type(producer.request(message, timeout_ms=1000), MessageExt)
        assert_type(producer.request_async(message), Future[MessageExt])
        done = producer.send_in_transaction(
            message, local_transaction=lambda _: LocalTransactionState.COMMIT, check=check
        )
        assert_type(done.state, LocalTransactionState)
    with rocketpy.sync.AdminClient("127.0.0.1:9876") as admin:
        assert_type(admin.query_message("Orders", "42").messages, list[MessageExt])
