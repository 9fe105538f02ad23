"""The blocking clients, and servers inside the process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from rocketpy import (
    BatchConfig,
    Message,
    MessageExt,
    ProducerConfig,
    PullStatus,
    PushConfig,
    SendResult,
    SendStatus,
)
from rocketpy import Producer as AsyncProducer
from rocketpy import PullConsumer as AsyncPullConsumer
from rocketpy.client.embedded_lease import _find_open, lease
from rocketpy.errors import ClientClosed, ConfigInvalid, FlowControlled, MessageTooLarge, UsageError
from rocketpy.sync import Producer, PullConsumer, PushConsumer, blocking
from tests.integration.sdk_groups import FIRST
from tests.waiting import LIMIT_S


@pytest.fixture
def producer() -> Iterator[Producer]:
    """A blocking producer with servers of its own."""
    with Producer("blocking", "embedded:") as started:
        yield started


def test_blocking_code_sends_and_reads(producer: Producer) -> None:
    """A script without an event loop could not use the client."""
    with PullConsumer("readers", "embedded:") as consumer:
        results = [producer.send(Message("Sync", b"%d" % number)) for number in range(3)]
        results += producer.send_batch([Message("Sync", b"3"), Message("Sync", b"4")])
        producer.send_oneway(Message("Sync", b"oneway"))
        bodies = []
        for result in results:
            pulled = consumer.pull(result.queue, result.queue_offset, 1)
            assert pulled.status is PullStatus.FOUND
            bodies.append(pulled.messages[0].body)
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        queue = results[0].queue
        ahead = [consumer.pull_async(result.queue, result.queue_offset, 1) for result in results]
        assert [future.result(10).messages[0].body for future in ahead] == bodies
        assert consumer.min_offset(queue) == 0
        assert consumer.max_offset(queue) > results[0].queue_offset
        assert consumer.search_offset(queue, 0) == 0
        consumer.commit(queue, 1)
        assert consumer.committed(queue) == 1
        assert consumer.fetch_queues("Sync") == producer.fetch_publish_message_queues("Sync")
        assert "Sync" in consumer.fetch_topics()
        assert consumer.view_message(results[0].offset_message_id).body == b"0"
        assert consumer.health().ok
        assert producer.health().ok


def test_send_async_calls_back(producer: Producer) -> None:
    """Code that uses RocketMQ's callbacks could not be ported."""
    done: list[Future[SendResult]] = []
    futures = [producer.send_async(Message("Callback", b"%d" % n), done.append) for n in range(500)]
    results = [future.result(timeout=LIMIT_S) for future in futures]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.message_id for result in results}) == 500
    assert done == futures


def test_send_async_reports_errors_by_its_future(producer: Producer) -> None:
    """One bad message would break the sends of all others, or vanish."""
    bad = producer.send_async(Message("Callback", bytes(5_000_000)))
    good = producer.send_async(Message("Callback", b"x"))
    with pytest.raises(MessageTooLarge):
        bad.result(timeout=LIMIT_S)
    assert good.result(timeout=LIMIT_S).status is SendStatus.SEND_OK


def test_a_cancelled_invalid_message_blocks_no_other(producer: Producer) -> None:
    """All blocking producers of the process would stop sending."""
    blocked, release = threading.Event(), threading.Event()

    def block(_: object) -> None:
        blocked.set()
        release.wait(10)

    producer.send_async(Message("Callback", b"x"), block)
    assert blocked.wait(LIMIT_S)  # calls wait from now on, and later run together
    bad = producer.send_async(Message("Callback", bytes(5_000_000)))
    good = producer.send_async(Message("Callback", b"x"))
    assert bad.cancel()
    release.set()
    assert good.result(timeout=LIMIT_S).status is SendStatus.SEND_OK
    later = producer.send_async(Message("Callback", b"x"))
    assert later.result(timeout=LIMIT_S).status is SendStatus.SEND_OK


def test_batches_are_in_flight_while_the_next_is_made(producer: Producer) -> None:
    """Blocking code would wait for each round trip, or could not tell which batch failed."""
    done: list[Future[list[SendResult]]] = []
    batches = [[Message("Bulk", b"%d" % number)] * 10 for number in range(50)]
    futures = [producer.send_batch_async(batch, done.append) for batch in batches]
    too_large = producer.send_batch_async([Message("Bulk", bytes(5_000_000))])
    results = [future.result(timeout=LIMIT_S) for future in futures]
    assert {len(part) for part in results} == {10}
    assert len({result.message_id for part in results for result in part}) == 500
    assert set(map(id, done)) == set(map(id, futures))
    with pytest.raises(MessageTooLarge):
        too_large.result(timeout=LIMIT_S)


def test_too_many_batches_in_flight_are_rejected() -> None:
    """A program that makes batches faster than the broker takes them would fill its memory."""
    config = ProducerConfig(max_in_flight=1, send_timeout_ms=50)
    with Producer("blocking", "embedded:", config=config) as producer:
        blocked, release = threading.Event(), threading.Event()

        def block(_: object) -> None:
            blocked.set()
            release.wait(10)

        producer.send_batch_async([Message("Bulk", b"x")], block)
        assert blocked.wait(LIMIT_S)  # from now on there are no responses
        second = producer.send_batch_async([Message("Bulk", b"y")])
        with pytest.raises(FlowControlled):
            producer.send_batch_async([Message("Bulk", b"z")])
        release.set()
        assert second.result(timeout=LIMIT_S)


def test_many_threads_share_one_producer(producer: Producer) -> None:
    """A web server with threads would need a connection each."""
    results: list[SendResult] = []

    def work() -> None:
        results.extend(producer.send(Message("Threads", b"x")) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({result.message_id for result in results}) == 160


def test_a_blocking_call_in_a_callback_is_rejected(producer: Producer) -> None:
    """The program would hang, or its developer would search for the reason of the closed producer."""
    errors: list[BaseException] = []

    def call_again(_: Future[SendResult]) -> None:
        try:
            producer.send(Message("Callback", b"x"))
        except UsageError as error:
            errors.append(error)

    producer.send_async(Message("Callback", b"x"), call_again).result(timeout=LIMIT_S)
    producer.send(Message("Callback", b"x"))  # the callback has run by now
    assert "wait for itself" in str(errors[0])
    assert "send_async" in str(errors[0])
    assert not isinstance(errors[0], ClientClosed)  # nothing is closed


def test_the_health_while_the_event_loop_is_blocked(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A readiness probe would wait as long as the callback, and then find no problem."""
    monkeypatch.setattr(blocking, "_BLOCKED_AFTER_S", 0.1)
    begun, go_on = threading.Event(), threading.Event()

    def block(_: object) -> None:
        begun.set()
        go_on.wait()

    producer.send_async(Message("T", b"x"), block)
    assert begun.wait(LIMIT_S)
    try:
        health = producer.health()
    finally:
        go_on.set()
    assert not health.ok
    assert "a callback, or a handler with threads=False, blocks it" in health.problems[0]
    monkeypatch.setattr(blocking, "_BLOCKED_AFTER_S", LIMIT_S)
    assert producer.health().ok


@pytest.mark.parametrize("where", ["handler", "callback"])
def test_an_exit_raised_in_a_callback_stops_no_client(producer: Producer, where: str) -> None:
    """SystemExit in a callback would stop the loop that all blocking calls share, and they would hang."""
    handled = threading.Event()

    async def handle(message: MessageExt) -> None:
        if message.body == b"exit":
            sys.exit(3)
        if message.body == b"after":
            handled.set()

    def called(_: object) -> None:
        sys.exit(3)

    producer.create_topic("Exit", 1)
    consumer = PushConsumer("g", "embedded:", handle, config=PushConfig(consume_from=FIRST))
    consumer.subscribe("Exit")
    with consumer:
        if where == "callback":
            producer.send_async(Message("Exit", b"x"), called).result(LIMIT_S)
        else:
            producer.send(Message("Exit", b"exit"))
        producer.send(Message("Exit", b"after"))
        assert handled.wait(LIMIT_S)
        assert consumer.health().ok


def test_use_before_start() -> None:
    """The caller would get an AttributeError from inside the client."""
    with pytest.raises(ClientClosed, match="not started"):
        Producer("g", "127.0.0.1:1").send(Message("T", b"x"))
    with pytest.raises(ClientClosed, match="not started"):
        PullConsumer("g", "127.0.0.1:1").fetch_queues("T")
    Producer("g", "127.0.0.1:1").close()
    PullConsumer("g", "127.0.0.1:1").close()


async def test_clients_of_embedded_share_its_servers() -> None:
    """A consumer would look for the producer's messages in servers of its own."""
    async with (
        AsyncProducer("g", "embedded:") as producer,
        AsyncPullConsumer("c", "embedded:") as consumer,
    ):
        result = await producer.send(Message("Inside", b"x"))
        assert (await consumer.pull(result.queue, 0)).messages[0].body == b"x"


async def test_an_embedded_store_is_kept(tmp_path: Path) -> None:
    """Messages would be missing after the next start of the program."""
    address = f"embedded://{tmp_path / 'store'}"
    async with AsyncProducer("g", address) as producer:
        result = await producer.send(Message("Kept", b"still here"))
    async with AsyncPullConsumer("c", address) as consumer:
        assert (await consumer.pull(result.queue, result.queue_offset)).messages[0].body == b"still here"


@pytest.mark.parametrize("address", ["embedded:relative", "embedded://host/path", "embedded:///"])
async def test_malformed_embedded_addresses(address: str) -> None:
    """A store would appear in an unexpected place."""
    with pytest.raises(ConfigInvalid, match="write embedded: or embedded:///"):
        await lease(address)


def test_without_the_broker_package_the_error_names_it() -> None:
    """The user would see an empty list or an ImportError."""
    with pytest.raises(ConfigInvalid, match="pip install rocketpy-mq"):
        _find_open("rocketpy.no-such-group")


def test_a_callback_may_send_without_waiting(producer: Producer) -> None:
    """Errors advise send_async in a callback, but it was rejected too, and leaked a place in flight."""
    sent: list[Future[SendResult]] = []

    def send_again(_: object) -> None:
        sent.append(producer.send_async(Message("Callback", b"again")))
        if len(sent) < 10:
            sent[-1].add_done_callback(send_again)

    producer.send_async(Message("Callback", b"x"), send_again).result(timeout=LIMIT_S)
    producer.flush()
    end = time.monotonic() + LIMIT_S
    while len(sent) < 10:  # each message is sent by the callback of the one before it
        assert time.monotonic() < end
        producer.flush()
    assert all(future.result(timeout=LIMIT_S).status is SendStatus.SEND_OK for future in sent)


@pytest.mark.parametrize(
    "config",
    [ProducerConfig(max_in_flight_bytes=4000), ProducerConfig(batch=BatchConfig(linger_ms=600_000))],
    ids=["little room", "gathering"],
)
def test_flush_waits_for_all_accepted_messages(config: ProducerConfig) -> None:
    """A program that commits its progress after `flush` would do so before its messages are stored."""
    with Producer("g", "embedded:", config=config) as producer:
        futures = [producer.send_async(Message("Flush", b"x" * 1000), timeout_ms=60_000) for _ in range(50)]
        batch = producer.send_batch_async([Message("Flush", b"b")] * 3)
        cancelled = producer.send_async(Message("Flush", b"x"))
        cancelled.cancel()
        producer.flush()
        assert batch.done()
        assert all(future.done() for future in (*futures, cancelled))
        assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
