"""The client after failures: peers that reject, are silent or disconnect; limits and timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rocketpy import (
    ClientConfig,
    CompressionConfig,
    Message,
    Outcome,
    Producer,
    ProducerConfig,
    PullConsumer,
    Retry,
    RetryConfig,
    SendResult,
    SendStatus,
)
from rocketpy.client.instance import ClientInstance
from rocketpy.errors import (
    BatchIncomplete,
    BrokerError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    FlowControlled,
    RequestTimeout,
    RouteNotFound,
)
from rocketpy.message import MessageQueue
from rocketpy.protocol.bodies import HeartbeatData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.sdk_peers import SENDS, Names, Peer, hangs_up, not_waiting, refuses, silent, stored
from tests.waiting import LIMIT_S, until

MESSAGE = Message("T", b"x")
NO_RETRY = ProducerConfig(retry=RetryConfig(times=0))


@contextlib.asynccontextmanager
async def one_broker(
    script: Any = None, config: ProducerConfig | None = None, client: ClientConfig | None = None
) -> AsyncIterator[tuple[Producer, Peer, Names]]:
    """A producer, a broker that follows a script, and the name server that knows it."""
    async with Peer(script) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("g", names.address, config=config, client=client) as producer:
            yield producer, broker, names


@pytest.mark.parametrize("address", ["nonsense", "quic://127.0.0.1:1", "127.0.0.1:99999", "a..b:1"])
async def test_sends_avoid_a_broker_with_an_invalid_address(address: str) -> None:
    """One misconfigured broker would make every second send fail for all clients."""
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": address, "b": broker.address}
        async with Producer("g", names.address) as producer:
            results = [await producer.send(MESSAGE) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {"b"}
            names.routes["Lost"] = {"a": address}
            with pytest.raises(ConnectFailed) as caught:
                await producer.send(Message("Lost", b"x"))
            assert caught.value.outcome is Outcome.NOT_SENT
            assert not any("background" in problem for problem in producer.health().problems)


# -- true outcomes ------------------------------------------------------------------------------------------


async def test_a_lost_connection_fails_requests_in_flight_at_once() -> None:
    """Callers would wait for their timeouts although the connection is closed."""
    async with one_broker(hangs_up, NO_RETRY) as (producer, broker, _):
        sends = [producer.send_nowait(MESSAGE, timeout_ms=60_000) for _ in range(20)]
        async with asyncio.timeout(LIMIT_S):
            ends = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(end) for end in ends} == {ConnectionLost}
        assert {end.outcome for end in ends if isinstance(end, ConnectionLost)} == {Outcome.UNKNOWN}
        broker.script = None
        assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
        assert producer.health().in_flight == 0


async def test_no_response_in_time_means_perhaps_stored() -> None:
    """The user would get NOT_SENT for a message that is stored."""
    async with one_broker() as (producer, broker, _):
        await producer.send(MESSAGE)  # connects, so that the timeout covers the request only
        broker.script = silent
        with pytest.raises(RequestTimeout) as caught:
            await producer.send(MESSAGE, timeout_ms=100)
        assert caught.value.outcome is Outcome.UNKNOWN
        await broker.until(lambda: len(broker.sends) == 2)  # it may read the request after the timeout


async def test_no_connection_means_not_stored() -> None:
    """The user could not know that a retry makes no duplicate."""
    async with one_broker(config=ProducerConfig(retry=RetryConfig(pause_ms=1))) as (producer, broker, names):
        await broker.close()
        with pytest.raises(ConnectFailed) as caught:
            await producer.send(MESSAGE)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert "attempt 3 of 3" in caught.value.__notes__[-1]
        assert not producer.health().ok
        assert names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)


async def test_sends_that_fail_together_have_errors_of_their_own() -> None:
    """A message that was never sent would be reported as possibly stored, because of another that waited."""
    async with Peer() as gone:
        address = gone.address
    async with Names(T={"a": address}) as names:
        config = ProducerConfig(batching=False, retry=RetryConfig(times=0))
        async with Producer("g", names.address, config=config) as producer:
            sends = [producer.send_nowait(MESSAGE) for _ in range(3)]
            ends = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(end) for end in ends] == [ConnectFailed] * 3
    assert len({id(end) for end in ends}) == 3


async def test_no_name_server_means_not_stored() -> None:
    """A wrong address would be reported as a timeout of a send."""
    async with Names() as names:
        gone = names.address
    async with not_waiting(Producer("g", gone)) as producer:
        with pytest.raises(ConnectFailed, match=gone) as caught:
            await producer.send(MESSAGE)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert gone in producer.health().problems[0]


async def test_waiting_for_a_route_takes_no_longer_than_the_timeout() -> None:
    """A silent name server would delay every send by its own timeout."""
    async with one_broker(client=ClientConfig(request_timeout_ms=3_600_000)) as (producer, _, names):
        names.script = lambda _channel, _request: None
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(RequestTimeout, match=r"after 50 ms .*message was not sent") as caught:
                await producer.send(MESSAGE, timeout_ms=50)
        assert caught.value.outcome is Outcome.NOT_SENT


async def test_draining_outlives_a_broker_that_is_lost() -> None:
    """A series of sends would end with an unrelated error, although other brokers work."""
    hung: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: hung.append(writer), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = ProducerConfig(
        batching=False, retry=RetryConfig(times=0), compression=CompressionConfig(above_bytes=1 << 30)
    )
    async with Names(T={"a": address}) as names, Producer("g", names.address, config=config) as producer:
        client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
        large = Message("T", bytes(1 << 20))
        sends = [producer.send_nowait(large, timeout_ms=60_000) for _ in range(30)]  # exceeds socket buffers
        link = client.connections.get(address)
        await until(lambda: len(hung) == 1 and link.channel is not None)
        draining = asyncio.ensure_future(producer.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        sends.append(producer.send_nowait(Message("Another", b"x")))
        server.close()
        hung[0].transport.abort()
        await draining
        ends = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(end) for end in ends} == {ConnectionLost, ConnectFailed, RouteNotFound}
        await client.release()


# -- retries ------------------------------------------------------------------------------------------------


async def test_another_broker_takes_over() -> None:
    """One broker that refuses would fail half of all sends."""
    async with Peer(refuses(ResponseCode.SERVICE_NOT_AVAILABLE)) as bad, Peer() as good, Names() as names:
        names.routes["T"] = {"a": bad.address, "b": good.address}
        async with Producer("g", names.address) as producer:
            results = [await producer.send(MESSAGE) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"b"}
        ids = [command.ext_fields()["i"] for command in [*bad.sends, *good.sends]]
        assert 1 <= len(bad.sends) <= 4
        assert len(set(ids)) == 4, "a repeated message keeps its id"


async def test_a_message_that_no_broker_accepts_is_not_repeated() -> None:
    """An illegal message would be sent three times."""
    async with one_broker(refuses(ResponseCode.MESSAGE_ILLEGAL)) as (producer, broker, _):
        with pytest.raises(BrokerError, match="a responded with code 13: because"):
            await producer.send(MESSAGE)
        assert len(broker.sends) == 1


async def test_the_only_broker_gets_three_attempts() -> None:
    """A broker that is offline for a moment would fail the send."""
    async with one_broker(
        refuses(ResponseCode.SYSTEM_ERROR), ProducerConfig(retry=RetryConfig(pause_ms=40))
    ) as (producer, broker, _):
        started = asyncio.get_running_loop().time()
        with pytest.raises(BrokerError) as caught:
            await producer.send(MESSAGE)
        assert len(broker.sends) == 3
        assert asyncio.get_running_loop().time() - started > 0.078, "a pause before each further attempt"
        assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_given_queue_and_oneway_are_tried_once() -> None:
    """Ordered messages would be repeated after later ones, or oneway messages would be repeated."""
    async with one_broker(refuses(ResponseCode.SYSTEM_ERROR)) as (producer, broker, _):
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE, queue=MessageQueue("T", "a", 1))
        assert len(broker.sends) == 1
        producer.send_oneway(MESSAGE)
        await broker.until(lambda: len(broker.sends) == 2)
        assert broker.sends[1].is_oneway
        with pytest.raises(RouteNotFound, match="no master of broker z"):
            await producer.send(MESSAGE, queue=MessageQueue("T", "z", 1))


async def test_status_not_ok_is_returned_or_retried_as_configured() -> None:
    """A stored message would be stored twice although the user did not allow a retry, or never."""

    def slow_disk(_channel: Channel, request: Command) -> Command:
        return stored(request, code=ResponseCode.FLUSH_DISK_TIMEOUT)

    async with one_broker(slow_disk) as (producer, broker, _):
        assert (await producer.send(MESSAGE)).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(broker.sends) == 1
    retry = RetryConfig(another_broker_when_not_ok=True, pause_ms=1)
    async with one_broker(slow_disk, ProducerConfig(retry=retry)) as (producer, broker, _):
        assert (await producer.send(MESSAGE)).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(broker.sends) == 3


async def test_an_attempt_has_a_timeout_of_its_own() -> None:
    """A broker that loses one request would cost the whole timeout, or the second copy go unnoticed."""

    def loses_first(_channel: Channel, request: Command) -> Command | None:
        return None if request.code in SENDS and len(broker.sends) == 1 else stored(request)

    retry = RetryConfig(times=100, pause_ms=1)
    config = ProducerConfig(send_timeout_ms=60_000, attempt_timeout_ms=100, retry=retry)
    async with one_broker(loses_first, config) as (producer, broker, _):
        result = await producer.send(MESSAGE)
        assert result.attempts == len(broker.sends) > 1
    config = ProducerConfig(send_timeout_ms=60_000, attempt_timeout_ms=20)
    async with one_broker(silent, config) as (producer, _, _names):
        with pytest.raises(RequestTimeout) as caught:
            await producer.send(MESSAGE)
        assert caught.value.attempts == 3


async def test_the_timeout_of_an_attempt_starts_when_it_is_written() -> None:
    """Requests that wait behind others for a slow broker would be given up, and sent twice."""
    config = ProducerConfig(send_timeout_ms=60_000, attempt_timeout_ms=1000, retry=RetryConfig(times=0))
    async with one_broker(None, config) as (producer, broker, _):
        await producer.send(MESSAGE)
        transport = cast(Any, broker.channels[0])._transport
        transport.pause_reading()
        sends = [producer.send_nowait(Message("T", os.urandom(400_000))) for _ in range(60)]
        await asyncio.wait(sends, return_when=asyncio.FIRST_EXCEPTION)
        transport.resume_reading()
        ends = [type(end) for end in await asyncio.gather(*sends, return_exceptions=True)]
        assert 0 < ends.count(RequestTimeout) < 30, "those that were written before"
        assert ends.count(SendResult) == 60 - ends.count(RequestTimeout)
        assert len(broker.sends) == 61


@pytest.mark.parametrize(
    "remark",
    [
        "request queueId[99] is illegal, TopicConfig [topicName=T",
        "the topic[T] is conflict with system reserved words.",
        "org.apache.rocketmq.acl.common.AclException: No acl config for me",
    ],
)
async def test_a_permanent_rejection_is_reported_as_final(remark: str) -> None:
    """A caller that honours `retry` would resend for minutes a message that can never be stored."""

    def refuse(_channel: Channel, request: Command) -> Command:
        is_send = request.code in SENDS
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=remark) if is_send else stored(request)

    async with one_broker(refuse, NO_RETRY) as (producer, _, _names):
        with pytest.raises(BrokerError) as caught:
            await producer.send(MESSAGE)
    assert (caught.value.retry, caught.value.outcome) == (Retry.NONE, Outcome.NOT_SENT)


async def test_a_batch_that_fails_in_the_middle_reports_its_progress() -> None:
    """The user could not see which messages of a long list are stored."""
    handled: list[Command] = []

    def second_fails(_channel: Channel, request: Command) -> Command:
        if request.code in SENDS:
            handled.append(request)
        return stored(request) if len(handled) < 2 else request.reply(ResponseCode.MESSAGE_ILLEGAL)

    async with one_broker(second_fails) as (producer, _, _names):
        messages = [Message("T", os.urandom(400_000)) for _ in range(6)]
        with pytest.raises(BatchIncomplete, match="2 of 6 messages are stored") as caught:
            await producer.send_batch(messages)
        assert [result.queue_offset for result in caught.value.results] == [7, 8]
        assert caught.value.outcome is Outcome.NOT_SENT


async def test_the_rest_of_a_batch_is_resent() -> None:
    """After one rejection in the middle of a long list, its caller would have to resend the rest."""
    handled: list[Command] = []

    def second_is_busy(_channel: Channel, request: Command) -> Command:
        if request.code in SENDS:
            handled.append(request)
        is_busy = request.code in SENDS and len(handled) == 2
        return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE) if is_busy else stored(request)

    async with one_broker(second_is_busy) as (producer, _, _names):
        messages = [Message("T", os.urandom(400_000)) for _ in range(6)]
        assert len(await producer.send_batch(messages)) == 6
        assert len({request.ext_fields()["e"] for request in handled}) == 1, "all in one queue"
        handled.clear()
        with pytest.raises(BatchIncomplete):
            await producer.send_batch(messages, queue=MessageQueue("T", "a", 1))


# -- name servers, routes, connections --------------------------------------------------------------------


async def test_the_next_name_server_is_used() -> None:
    """With one of two name servers down, no topic would be found."""
    async with Names() as gone, Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        addresses = f"{gone.address};{names.address}"
        gone.script = lambda channel, _request: channel.abort()
        for _ in range(4):  # the first one is chosen at random
            async with Producer("g", addresses) as producer:
                assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK


async def test_a_topic_that_one_name_server_lacks_is_found_at_another() -> None:
    """While a name server that was restarted waits for its brokers, clients would find no topic."""
    async with Names() as new, Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        for _ in range(4):  # the first one is chosen at random
            async with Producer("g", f"{new.address};{names.address}") as producer:
                assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
                with pytest.raises(RouteNotFound):
                    await producer.fetch_publish_message_queues("Unknown")


async def test_a_new_topic_borrows_the_default_topics_route() -> None:
    """Topics could not be created by sending to them."""
    async with Peer() as broker, Names() as names:
        names.queues = 8
        names.routes["TBW102"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            sends = [await producer.send(MESSAGE) for _ in range(8)]
        assert {result.queue.queue_id for result in sends} == {0, 1, 2, 3}


async def test_a_topic_that_exists_borrows_nothing() -> None:
    """After a send to a new topic, one to a topic with fewer queues would go to a queue that it lacks."""
    async with Peer() as broker, Names() as names:
        names.queues = 8
        names.routes["TBW102"] = {"a": broker.address}
        async with Producer("g", names.address) as producer:
            await producer.send(Message("New", b"x"))
            names.queues = 1
            names.routes["Old"] = {"a": broker.address}
            sends = [await producer.send(Message("Old", b"x")) for _ in range(8)]
        assert {result.queue.queue_id for result in sends} == {0}


async def test_a_moved_broker_is_found_by_the_refresh() -> None:
    """After a broker got another address, sends would fail until the process restarts."""
    client = ClientConfig(route_refresh_ms=20)
    async with Peer() as old, Peer() as new, Names() as names:
        names.routes["T"] = {"a": old.address}
        async with Producer("g", names.address, client=client) as producer:
            await producer.send(MESSAGE)
            names.routes["T"] = {"a": new.address}
            async with asyncio.timeout(LIMIT_S):
                while not new.sends:
                    await producer.send(MESSAGE)
                while old.address in producer.health().brokers:  # its connection is closed
                    await producer.send(MESSAGE)


async def test_a_moved_broker_is_found_by_a_retry() -> None:
    """The send would fail although the name server knows better."""
    async with Peer() as old, Peer() as new, Names() as names:
        names.routes["T"] = {"a": old.address}
        async with Producer("g", names.address) as producer:
            await producer.send(MESSAGE)
            await old.close()
            names.routes["T"] = {"a": new.address}
            assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
        assert len(new.sends) == 1


async def test_callers_share_one_connection_and_one_route_request() -> None:
    """A burst at the start would open a connection for each message."""
    async with one_broker() as (producer, broker, names):
        asked = len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC))
        await asyncio.gather(*[producer.send(MESSAGE) for _ in range(50)])
        assert broker.opened == 1
        assert len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) == asked + 1
        assert names.opened == 1


async def test_clients_with_equal_settings_share_connections() -> None:
    """Ten producers of a process would hold ten connections to every broker."""
    async with one_broker() as (producer, broker, names):
        await producer.send(MESSAGE)
        async with Producer("other", names.address) as second, PullConsumer("c", names.address) as consumer:
            await second.send(MESSAGE)
            assert second.health().client_id == producer.health().client_id
            assert len(await consumer.fetch_queues("T")) == 2
        assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
        assert broker.opened == 1
        async with Producer("third", names.address, client=ClientConfig(request_timeout_ms=999)) as third:
            assert third.health().client_id != producer.health().client_id


async def test_brokers_are_notified_of_joining_and_leaving_groups() -> None:
    """Transaction checks would find no producer; admin tools would show no producer, or closed ones."""
    client = ClientConfig(heartbeat_ms=20)
    async with Peer() as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with Producer("payers", names.address, client=client) as producer:
            await producer.send(MESSAGE)
            assert broker.seen[0].code == RequestCode.HEART_BEAT
            await broker.until(lambda: len(broker.requests(RequestCode.HEART_BEAT)) >= 3)
            beat = HeartbeatData.decode(broker.seen[0].body)
            assert [group.group_name for group in beat.producer_data_set] == ["payers"]
            assert beat.client_id == producer.health().client_id
        (goodbye,) = broker.requests(RequestCode.UNREGISTER_CLIENT)
        assert goodbye.ext_fields()["producerGroup"] == "payers"


async def test_a_failed_background_task_is_seen() -> None:
    """Routes would no longer be refreshed, without a report."""
    async with one_broker() as (producer, _, names):
        client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))

        async def breaks() -> None:
            raise ZeroDivisionError

        await asyncio.wait([client.tasks.spawn(breaks(), "a task")])
        assert not producer.health().ok
        assert "ZeroDivisionError" in producer.health().problems[0]
        await client.release()


# -- bounds, closing, cancelling ---------------------------------------------------------------------------


async def test_limits_make_send_wait_and_send_nowait_fail() -> None:
    """A slow broker would fill the memory of its producers."""
    held: list[tuple[Channel, Command]] = []

    def hold(channel: Channel, request: Command) -> Command | None:
        if request.code not in SENDS:
            return stored(request)
        held.append((channel, request))
        return None

    config = ProducerConfig(max_in_flight=3, batching=False)
    async with one_broker(hold, config) as (producer, broker, _):
        sends = [asyncio.create_task(producer.send(Message("T", b"%d" % number))) for number in range(10)]
        await broker.until(lambda: len(held) == 3)
        assert producer.health().in_flight == 3
        with pytest.raises(FlowControlled, match="3 messages"):
            producer.send_nowait(MESSAGE)
        with pytest.raises(FlowControlled):
            producer.send_oneway(MESSAGE)
        with pytest.raises(FlowControlled):
            await producer.send(MESSAGE, timeout_ms=20)
        drained = asyncio.create_task(producer.drain())
        for count in range(10):
            await broker.until(lambda expected=count + 1: len(held) >= expected)  # type: ignore[misc]
            assert producer.health().in_flight <= 3
            channel, request = held[count]
            channel.reply(stored(request))
        assert [(await send).status for send in sends] == [SendStatus.SEND_OK] * 10
        await drained
        assert [command.body for command in broker.sends] == [b"%d" % number for number in range(10)]
        assert (producer.health().in_flight, producer.health().in_flight_bytes) == (0, 0)


async def test_draining_has_no_timeout() -> None:
    """A program that sends faster than its broker stores would end with FlowControlled."""
    held: list[tuple[Channel, Command]] = []

    def hold(channel: Channel, request: Command) -> Command | None:
        if request.code not in SENDS:
            return stored(request)
        held.append((channel, request))
        return None

    async with one_broker(hold, ProducerConfig(max_in_flight=1)) as (producer, broker, _):
        send = producer.send_nowait(MESSAGE, timeout_ms=600_000)
        await broker.until(lambda: bool(held))
        draining = asyncio.create_task(producer.drain())
        done, _ = await asyncio.wait({draining}, timeout=0.3)
        assert not done
        ((channel, request),) = held
        channel.reply(stored(request))
        await draining
        assert (await send).status is SendStatus.SEND_OK


async def test_bytes_in_flight_are_bounded_but_one_message_always_goes() -> None:
    """Large messages would exceed the memory that the bound allows, or a very large one never be sent."""
    async with one_broker(silent, ProducerConfig(max_in_flight_bytes=100)) as (producer, broker, _):
        producer.send_nowait(Message("T", bytes(1000)), timeout_ms=50).cancel()
        with pytest.raises(FlowControlled, match="1000 bytes are in flight"):
            producer.send_nowait(MESSAGE)
        await broker.until(lambda: len(broker.sends) == 0)
        async with asyncio.timeout(LIMIT_S):
            await producer.drain()
        broker.script = None
        await producer.send(MESSAGE)


async def test_oneway_sends_in_a_loop_are_bounded_and_drained() -> None:
    """A loop of oneway sends would fill the memory."""
    async with one_broker(config=ProducerConfig(max_in_flight=10)) as (producer, broker, _):
        for _ in range(95):
            try:
                producer.send_oneway(MESSAGE)
            except FlowControlled:
                await producer.drain()
                producer.send_oneway(MESSAGE)
        await broker.until(lambda: len(broker.sends) == 95)


@pytest.mark.parametrize("batching", [True, False])
async def test_flush_waits_for_each_response_and_raises_none(batching: bool) -> None:
    """Progress that a program commits after its sends could be ahead of the stored messages."""
    held: list[tuple[Channel, Command]] = []

    def hold(channel: Channel, request: Command) -> None:
        held.append((channel, request))

    def is_later(place: tuple[Channel, Command]) -> bool:
        return place[1].body == b"later"

    async with one_broker(config=ProducerConfig(batching=batching)) as (producer, broker, _):
        await producer.flush()  # nothing to wait for
        await asyncio.gather(*[producer.send(MESSAGE) for _ in range(3)])  # the broker takes batches
        broker.script = hold
        sends = [producer.send_nowait(MESSAGE) for _ in range(3)]
        producer.send_oneway(MESSAGE)
        flushing = asyncio.create_task(producer.flush())
        await broker.until(lambda: len(held) > 0)
        assert not flushing.done()
        later = producer.send_nowait(Message("T", b"later"))
        await broker.until(lambda: any(map(is_later, held)))
        assert not flushing.done()
        for channel, request in held:
            if is_later((channel, request)):
                continue
            is_refused = not batching and request is held[0][1]
            channel.reply(request.reply(ResponseCode.MESSAGE_ILLEGAL) if is_refused else stored(request))
        await flushing
        assert all(send.done() for send in sends)
        assert not later.done()
        assert [isinstance(send.exception(), BrokerError) for send in sends] == [not batching, False, False]
        channel, request = next(filter(is_later, held))
        channel.reply(stored(request))
        await producer.flush()
        assert later.done()
        broker.script = None


async def test_close_waits_for_responses() -> None:
    """Messages that were accepted would be lost at the end of a program."""
    held: list[tuple[Channel, Command]] = []

    def hold(channel: Channel, request: Command) -> Command | None:
        if request.code not in SENDS:
            return stored(request)
        held.append((channel, request))
        return None

    async with one_broker(hold, ProducerConfig(batching=False)) as (producer, broker, _):
        sends = [producer.send_nowait(MESSAGE, timeout_ms=3_600_000) for _ in range(3)]
        await broker.until(lambda: len(held) == 3)
        closing = asyncio.create_task(producer.close(timeout_ms=3_600_000))
        await asyncio.sleep(0)
        with pytest.raises(ClientClosed):
            producer.send_nowait(MESSAGE)
        async with asyncio.timeout(LIMIT_S):
            for (channel, request), send in zip(held, sends, strict=True):
                assert not closing.done()
                channel.reply(stored(request))
                assert (await send).status is SendStatus.SEND_OK
            assert await closing == []


async def test_close_reports_sends_without_a_response() -> None:
    """The end of the program would hang, or hide which messages may be lost."""
    async with one_broker(silent) as (producer, broker, names):
        names.routes["Far"] = {"z": "192.0.2.1:9"}  # never responds
        first, second = Message("T", b"on the wire"), Message("Far", b"waits for a connection")
        sends = [producer.send_nowait(first, timeout_ms=600_000)]
        await broker.until(lambda: len(broker.sends) == 1)
        sends.append(producer.send_nowait(second, timeout_ms=600_000))
        async with asyncio.timeout(LIMIT_S):
            unfinished = await producer.close(timeout_ms=20)
        assert unfinished == [(first, Outcome.UNKNOWN), (second, Outcome.NOT_SENT)]
        for send, expected in zip(sends, unfinished, strict=True):
            with pytest.raises(ClientClosed) as caught:
                await send
            assert caught.value.outcome is expected.outcome


async def test_cancelled_sends_do_not_affect_others() -> None:
    """One cancelled send would break the sends of others, or keep its place in flight forever."""
    config = ProducerConfig(max_in_flight=5, batching=False)
    async with one_broker(silent, config) as (producer, broker, _):
        tasks = [asyncio.create_task(producer.send(MESSAGE)) for _ in range(9)]
        await broker.until(lambda: len(broker.sends) == 5)
        for task in tasks:
            task.cancel()
        assert {type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)} == {
            asyncio.CancelledError
        }
        for request in broker.sends:
            broker.channels[0].reply(stored(request))  # late responses to cancelled callers
        broker.script = None
        results = await asyncio.gather(*[producer.send(MESSAGE) for _ in range(20)])
        assert len(results) == 20
        assert producer.health().in_flight == 0


async def test_cancelling_before_the_route_is_known_sends_nothing() -> None:
    """A message that was cancelled in time would be sent after all."""
    async with one_broker() as (producer, broker, names):
        held: list[tuple[Channel, Command]] = []
        names.script = lambda channel, request: held.append((channel, request))
        send = producer.send_nowait(MESSAGE)
        await names.until(lambda: len(held) == 1)
        send.cancel()
        channel, request = held[0]
        response = names.respond(channel, request)
        assert response is not None
        channel.reply(response)
        names.script = names.respond
        assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
        assert len(broker.sends) == 1


# -- reading ------------------------------------------------------------------------------------------------


async def test_a_read_survives_a_connection_that_was_closed_meanwhile() -> None:
    """The first pull after a quiet time would fail: servers close idle connections."""
    requests: list[Command] = []

    def hang_up_once(channel: Channel, request: Command) -> Command | None:
        requests.append(request)
        if len(requests) == 1:
            channel.abort()
            return None
        return request.reply(ResponseCode.SYSTEM_BUSY, remark="later")

    async with Peer(hang_up_once) as broker, Names() as names:
        names.routes["T"] = {"a": broker.address}
        async with PullConsumer("c", names.address) as consumer:
            with pytest.raises(BrokerError, match="a responded with code 2: later"):
                await consumer.max_offset(MessageQueue("T", "a", 0))
            with pytest.raises(RouteNotFound, match="no broker z"):
                await consumer.pull(MessageQueue("T", "z", 0), 0)
        assert len(requests) == 2


# -- a topic without a master -------------------------------------------------------------------------------


async def test_sends_wait_for_a_master_and_keep_their_order() -> None:
    """Each election of a leader would fail the sends of two seconds, or change their order."""
    async with one_broker(config=ProducerConfig(batching=False)) as (producer, broker, names):
        names.broker_id = 1
        queue = MessageQueue("T", "a", 0)
        sends = [producer.send_nowait(Message("T", b"%d" % n), queue=queue) for n in range(5)]
        first = len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC))
        await names.until(lambda: len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) >= first + 3)
        sends += [producer.send_nowait(Message("T", b"%d" % n), queue=queue) for n in range(5, 10)]
        selector = producer.send(MESSAGE, selector=lambda queues, *_: queues[1])
        assert not broker.sends
        names.broker_id = 0
        results = await asyncio.gather(selector, *sends)
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert [command.body for command in broker.sends if command.body != b"x"] == [
            b"%d" % n for n in range(10)
        ]
        assert len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) < 20, "all share the questions"


async def test_a_send_that_finds_a_master_wakes_the_others() -> None:
    """A new send would overtake those that wait for the pause to end."""
    config = ProducerConfig(batching=False, retry=RetryConfig(pause_ms=60_000))
    async with one_broker(config=config) as (producer, broker, names):
        names.broker_id = 1
        early = producer.send_nowait(Message("T", b"early"), timeout_ms=50_000)
        client = await ClientInstance.acquire(ClientConfig(namesrv=names.address))
        await names.until(lambda: bool(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)))
        await until(lambda: client.routes.entry("T").route is not None)
        names.broker_id = 0
        await client.routes.get("T", fresh=True)
        await producer.send(Message("T", b"late"))
        await early
        assert [command.body for command in broker.sends] == [b"early", b"late"]
        await client.release()


@pytest.mark.parametrize("how", ["turn", "queue", "selector"])
async def test_without_a_master_a_send_ends_with_its_timeout(how: str) -> None:
    """A broker that was removed would block its callers forever."""
    async with one_broker() as (producer, broker, names):
        names.broker_id = 1
        ways: dict[str, dict[str, Any]] = {
            "turn": {},
            "queue": {"queue": MessageQueue("T", "a", 0)},
            "selector": {"selector": lambda queues, *_: queues[0]},
        }
        where = ways[how]
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(RouteNotFound, match="had a master within 300 ms: a") as caught:
                await producer.send(MESSAGE, timeout_ms=300, **where)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert not broker.sends
        assert len(names.requests(RequestCode.GET_ROUTEINTO_BY_TOPIC)) <= 6, "one question every 100 ms"
        assert producer.health().in_flight == 0
        waiting = producer.send_nowait(MESSAGE, timeout_ms=60_000, **where)
        await asyncio.sleep(0)
        assert len(await producer.close(timeout_ms=0)) <= 1
        with pytest.raises(ClientClosed):
            await waiting
