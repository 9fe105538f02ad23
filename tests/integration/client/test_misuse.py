"""Usage errors are raised before a message is sent, and affect no other caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from rocketpy import (
    AdminClient,
    BatchConfig,
    ClientConfig,
    LocalTransactionState,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    ProducerConfig,
    SendStatus,
)
from rocketpy.errors import ClientClosed, ConfigInvalid, MessageInvalid
from rocketpy.producer.send.encoder import MessageEncoder
from rocketpy.producer.send.request_template import SendTemplate
from rocketpy.protocol.codes import RequestCode
from rocketpy.sync import LitePullConsumer as SyncLitePullConsumer
from rocketpy.sync import Producer as SyncProducer
from rocketpy.sync import PullConsumer as SyncPullConsumer
from tests.integration.client.test_failures import MESSAGE, one_broker
from tests.integration.sdk_peers import Names, Peer
from tests.waiting import LIMIT_S

SendTo = Callable[[Producer, MessageQueue], object]

WAYS: dict[str, SendTo] = {
    "send": lambda producer, queue: producer.send(MESSAGE, queue=queue),
    "send_nowait": lambda producer, queue: producer.send_nowait(MESSAGE, queue=queue),
    "send_oneway": lambda producer, queue: producer.send_oneway(MESSAGE, queue=queue),
    "send_batch": lambda producer, queue: producer.send_batch([MESSAGE], queue=queue),
    "selector": lambda producer, queue: producer.send(MESSAGE, selector=lambda *_: queue),
    "request": lambda producer, queue: producer.request(MESSAGE, queue=queue),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_queue_of_another_topic_is_rejected(way: str) -> None:
    """The result would name another topic than the one that contains the message."""
    async with one_broker() as (producer, broker, names):
        names.routes["U"] = names.routes["T"]
        with pytest.raises(MessageInvalid, match="topic T cannot go to a queue of topic U") as caught:
            await (WAYS[way](producer, MessageQueue("U", "a", 1)) or asyncio.sleep(0))  # type: ignore[misc]
        assert caught.value.outcome is Outcome.NOT_SENT
        await producer.send(MESSAGE, queue=MessageQueue("T", "a", 1))
        assert len(broker.sends) == 1
        assert producer.health().in_flight == 0


async def test_a_queue_is_the_topics_with_its_namespace_or_without() -> None:
    """With a namespace, no queue that the client itself names could be sent to."""
    async with Peer() as broker, Names() as names:
        names.routes["tenant%T"] = {"a": broker.address}
        config = ClientConfig(namespace="tenant", namesrv=names.address)
        async with Producer("g", client=config) as producer:
            queue = (await producer.fetch_publish_message_queues("T"))[0]
            assert queue.topic == "T"
            await producer.send(MESSAGE, queue=queue)
            await producer.send(MESSAGE, queue=MessageQueue("tenant%T", "a", 0))
            with pytest.raises(MessageInvalid, match="topic T cannot"):
                await producer.send(MESSAGE, queue=MessageQueue("other%T", "a", 0))
        assert len(broker.sends) == 2


async def test_an_invalid_queue_is_rejected() -> None:
    """A queue id in place of a queue would fail with an AttributeError inside the client."""
    async with one_broker() as (producer, _, _names):
        with pytest.raises(MessageInvalid, match="must be a MessageQueue"):
            await producer.send(MESSAGE, queue=3)  # type: ignore[arg-type]


# -- timeouts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["5", 0, -1, float("nan"), float("inf"), True, 10**30], ids=repr)
@pytest.mark.parametrize("batching", [True, False])
async def test_an_invalid_timeout_is_rejected_and_fails_no_other_send(bad: Any, batching: bool) -> None:
    """The send would hang, and those in the same batch would fail with a TypeError."""
    async with one_broker(config=ProducerConfig(batching=batching)) as (producer, broker, _):
        good = [producer.send_nowait(MESSAGE) for _ in range(3)]
        for use in (
            lambda: producer.send(MESSAGE, timeout_ms=bad),
            lambda: producer.send(MESSAGE, timeout_ms=bad, selector=lambda queues, *_: queues[0]),
            lambda: producer.send_nowait(MESSAGE, timeout_ms=bad),
            lambda: producer.send_batch([MESSAGE], timeout_ms=bad),
            lambda: producer.request(MESSAGE, timeout_ms=bad),
            lambda: producer.request_nowait(MESSAGE, timeout_ms=bad),
        ):
            with pytest.raises(ConfigInvalid, match="timeout_ms is") as caught:
                await use()
            assert caught.value.outcome is Outcome.NOT_SENT
        good.append(producer.send_nowait(MESSAGE))
        assert {result.status for result in await asyncio.gather(*good)} == {SendStatus.SEND_OK}
        assert (await producer.send(MESSAGE, timeout_ms=cast(int, 2500.5))).status is SendStatus.SEND_OK
        assert producer.health().in_flight == 0
        assert len(broker.sends) <= 5


def test_blocking_clients_reject_invalid_timeouts() -> None:
    """The caller would get a TypeError or OverflowError, or wait forever."""
    with SyncProducer("g", "embedded:") as producer:
        for bad in cast(list[int], ["5", -1]):
            for use in (producer.send, producer.send_async):
                with pytest.raises(ConfigInvalid, match="timeout_ms is"):
                    use(MESSAGE, timeout_ms=bad)
            with pytest.raises(ConfigInvalid, match="timeout_ms is"):
                producer.send_batch_async([MESSAGE], timeout_ms=bad)
        assert producer.send_async(MESSAGE, timeout_ms=2**62).result(10).status is SendStatus.SEND_OK


def test_consumers_reject_invalid_timeouts() -> None:
    """A pull without time would have the default, and a poll with a negative time would return nothing."""
    queue = MessageQueue("T", "b", 0)
    with SyncPullConsumer("g", "embedded:") as pulling, SyncLitePullConsumer("h", "embedded:") as polling:
        for bad in cast(list[int], ["5", -1, float("nan")]):
            for use in (partial(pulling.pull, queue, 0), polling.poll, polling.getmany):
                with pytest.raises(ConfigInvalid, match="timeout_ms is"):
                    use(timeout_ms=bad)
        with pytest.raises(ConfigInvalid, match="timeout_ms is 0"):
            pulling.pull(queue, 0, timeout_ms=0)
        assert polling.poll(0) == []


@pytest.mark.parametrize("place", ["prepare", "encode"])
@pytest.mark.parametrize("count", [1, 3])
async def test_an_error_while_a_batch_is_encoded_ends_its_sends(
    place: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers would hang, `close` would wait for its timeout, and later sends of that turn would be lost."""

    def broken(*_: object, **_options: object) -> None:
        raise ZeroDivisionError("planted")

    config = ProducerConfig(batch=BatchConfig(linger_ms=1))  # a single message is gathered, too
    async with one_broker(config=config) as (producer, broker, names):
        names.routes["U"] = names.routes["T"]
        await producer.send(MESSAGE)
        with monkeypatch.context() as patch:
            if place == "encode":
                patch.setattr(SendTemplate, "frame", broken)
            else:
                patch.setattr(MessageEncoder, "seal", broken)
            sends = [producer.send_nowait(MESSAGE) for _ in range(count)]
            async with asyncio.timeout(LIMIT_S):
                ends = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(end) for end in ends} == {ZeroDivisionError}
        assert producer.health().in_flight == 0
        assert (await producer.send(Message("U", b"x"))).status is SendStatus.SEND_OK
        results = await asyncio.gather(*[producer.send(MESSAGE) for _ in range(3)])
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert broker.sends


# -- values of a wrong type ---------------------------------------------------------------------------------

NO_MESSAGES: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send(cast(Message, "hello")),
    "send_nowait": lambda producer: producer.send_nowait(cast(Message, b"hello")),
    "send_oneway": lambda producer: producer.send_oneway(cast(Message, None)),
    "request": lambda producer: producer.request(cast(Message, "hello")),
    "send_batch": lambda producer: producer.send_batch(cast(list[Message], ["hello"])),
    "later in a batch": lambda producer: producer.send_batch([MESSAGE, cast(Message, "hello")]),
    "a text as a batch": lambda producer: producer.send_batch(cast(list[Message], "hello")),
    "a message as a batch": lambda producer: producer.send_batch(cast(list[Message], MESSAGE)),
    "send_in_transaction": lambda producer: producer.send_in_transaction(
        cast(Message, "hello"),
        local_transaction=lambda _: LocalTransactionState.COMMIT,
        check=lambda _: LocalTransactionState.COMMIT,
    ),
}


@pytest.mark.parametrize("way", NO_MESSAGES)
async def test_an_invalid_message_is_rejected(way: str) -> None:
    """The caller would get an undocumented AttributeError from inside the client."""
    async with one_broker() as (producer, broker, _):
        with pytest.raises(MessageInvalid, match=r"cannot be sent|a batch needs an iterable"):
            await (NO_MESSAGES[way](producer) or asyncio.sleep(0))  # type: ignore[misc]
        assert not broker.sends


async def test_a_batch_may_be_any_iterable() -> None:
    """A generator would fail with a TypeError about its length."""
    async with one_broker() as (producer, broker, _):
        assert len(await producer.send_batch(Message("T", b"%d" % n) for n in range(3))) == 3
        assert len(broker.sends) == 1


CONFIGS: dict[str, Callable[[], object]] = {
    "write 'host:9876'": lambda: Producer("g", cast(str, ["127.0.0.1:9876"])),
    "namesrv is 9876": lambda: AdminClient(cast(str, 9876)),
    "config is a dict": lambda: Producer("g", config=cast(ProducerConfig, {})),
    "client is a str": lambda: AdminClient(client=cast(ClientConfig, "127.0.0.1:9876")),
    "send_timeout_ms is '5', a str": lambda: ProducerConfig(send_timeout_ms=cast(int, "5")),
    "default_topic_queues is 1.5": lambda: ProducerConfig(default_topic_queues=cast(int, 1.5)),
    "max_in_flight is None": lambda: ProducerConfig(max_in_flight=cast(int, None)),
}


@pytest.mark.parametrize("said", CONFIGS)
def test_settings_of_a_wrong_type_are_rejected(said: str) -> None:
    """The error would come later, from inside the client; an empty dict would mean the default."""
    with pytest.raises(ConfigInvalid, match=said):
        CONFIGS[said]()


async def test_malformed_message_ids_are_rejected() -> None:
    """The caller would get the error that a server violated the protocol."""
    async with one_broker() as (producer, _, _names):
        with pytest.raises(MessageInvalid, match="is not a message id"):
            await producer.view_message("nonsense")
        with pytest.raises(MessageInvalid, match="is not a unique id"):
            await producer.view_message("nonsense", "T")


@pytest.mark.parametrize("count", [0, -1])
async def test_a_topic_without_queues_is_rejected(count: int) -> None:
    """The topic would be created, and no message could be sent to it."""
    async with one_broker() as (producer, broker, _):
        with pytest.raises(ConfigInvalid, match="queue_count"):
            await producer.create_topic("New", count)
        assert not broker.requests(RequestCode.UPDATE_AND_CREATE_TOPIC)


async def test_a_selector_without_a_result_is_reported() -> None:
    """The error would end with "for None", without the selector and its argument."""
    async with one_broker() as (producer, _, _names):
        with pytest.raises(
            MessageInvalid,
            match=r"returned 1; it must .* \(its arg was None\)",
        ):
            await producer.send(MESSAGE, selector=lambda *_: cast(MessageQueue, 1))


async def test_a_transaction_after_close() -> None:
    """The local transaction would run, or the error not say that the producer is closed."""
    async with one_broker() as (producer, _, _names):
        producer.check_transactions(lambda _: LocalTransactionState.COMMIT)
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send_in_transaction(
                MESSAGE, local_transaction=lambda _: LocalTransactionState.COMMIT
            )
