"""What kombu's users do: publish, consume, acknowledge, requeue, and broadcast."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest

from pytest_rocketpy.cluster import ClusterThread
from rocketpy import Message
from rocketpy.errors import MessageTooLarge, NotDurable, RouteNotFound
from rocketpy.sync import AdminClient, Producer
from rocketpy_kombu import envelope
from rocketpy_kombu.names import BROADCAST_TOPIC, broadcast_tag
from tests.frameworks.programs import stored, wait_until
from tests.mqconsumer.undecodable import raw_send
from tests.mqproducer.place import Place
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.frameworks
Connect = Callable[..., kombu.Connection]


class Consumed:
    """A consumer, and what it has received."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue, prefetch: int = 0) -> None:
        self.messages: list[Any] = []
        self.connection = connection
        self.channel = connection.channel()
        self.consumer = kombu.Consumer(
            self.channel, list(queues), callbacks=[lambda _, message: self.messages.append(message)]
        )
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def wait(self, count: int) -> list[Any]:
        """Wait for this number of messages in all; return their values."""
        end = time.monotonic() + LIMIT_S
        while len(self.messages) < count:
            self.connection.drain_events(timeout=max(0.0, end - time.monotonic()))
        return [message.payload for message in self.messages]

    def nothing_more(self) -> None:
        """Nothing arrives while others could."""
        with pytest.raises(socket.timeout):
            self.connection.drain_events(timeout=0.3)


def publish(connection: kombu.Connection, queue: kombu.Queue, *values: object, **how: Any) -> None:
    """Send values to a queue."""
    with connection.channel() as channel:
        producer = kombu.Producer(channel)
        for value in values:
            key = queue.routing_key if queue.exchange.name else queue.name
            producer.publish(value, exchange=queue.exchange, routing_key=key, declare=[queue], **how)


def test_messages_arrive_with_their_headers(connect: Connect) -> None:
    """Celery keeps the name and the id of a task in headers."""
    queue = kombu.Queue("jobs", kombu.Exchange("jobs"), routing_key="jobs")
    publish(connect(), queue, {"a": 1}, headers={"task": "send"}, correlation_id="7")
    consumed = Consumed(connect(), queue)
    assert consumed.wait(1) == [{"a": 1}]
    [message] = consumed.messages
    assert message.headers["task"] == "send"
    assert message.properties["correlation_id"] == "7"
    assert message.delivery_info["routing_key"] == "jobs"
    assert not message.delivery_info["redelivered"]
    message.ack()


def test_an_acknowledged_message_does_not_come_again(connect: Connect) -> None:
    """Each task would run in every visibility timeout."""
    queue = kombu.Queue("jobs")
    publish(connect(), queue, "one")
    first = connect(visibility_timeout=1)
    consumed = Consumed(first, queue)
    consumed.wait(1)
    consumed.messages[0].ack()
    first.release()
    later = Consumed(connect(visibility_timeout=1), queue)
    publish(connect(), queue, "two")
    assert later.wait(1) == ["two"]


def test_a_message_is_kept_while_its_connection_lives(namesrv: str) -> None:
    """A task that runs longer than the visibility timeout would run twice."""
    queue = kombu.Queue("jobs")
    url, options = f"rocketmq://{namesrv}", {"visibility_timeout": 4}
    with (
        kombu.Connection(url, transport_options=options) as first,
        kombu.Connection(url, transport_options=options) as second,
    ):
        publish(first, queue, "long")
        holder = Consumed(first, queue)
        holder.wait(1)
        other = Consumed(second, queue)
        with pytest.raises(TimeoutError):  # twice the timeout
            other.connection.drain_events(timeout=8)
        holder.messages[0].ack()


def test_a_closed_connection_releases_its_messages(connect: Connect) -> None:
    """After a warm shutdown, tasks that had not started would wait for the visibility timeout."""
    queue = kombu.Queue("jobs")
    publish(connect(), queue, *range(3))
    first = connect(visibility_timeout=3600)
    consumed = Consumed(first, queue, prefetch=3)
    consumed.wait(1)  # the others are on their way, or in the connection
    first.release()
    later = Consumed(connect(), queue)
    assert sorted(later.wait(3)) == [0, 1, 2]
    assert any(message.delivery_info["redelivered"] for message in later.messages)


def test_a_requeued_message_comes_again_and_a_rejected_one_does_not(connect: Connect) -> None:
    """Celery requeues the task of a process that was killed."""
    queue = kombu.Queue("jobs")
    publish(connect(), queue, "again", "never")
    consumed = Consumed(connect(), queue)
    consumed.wait(2)
    for message in list(consumed.messages):
        if message.payload == "again":
            message.requeue()
        else:
            message.reject()
    assert consumed.wait(3)[2] == "again"
    assert consumed.messages[2].delivery_info["redelivered"]
    consumed.messages[2].ack()


def test_a_prefetch_count_leaves_messages_to_other_consumers(connect: Connect) -> None:
    """A busy worker would keep tasks from idle ones."""
    queue = kombu.Queue("jobs")
    publish(connect(), queue, *range(4))
    first = Consumed(connect(), queue, prefetch=1)
    first.wait(1)
    second = Consumed(connect(), queue, prefetch=3)
    second.wait(3)
    first.nothing_more()
    first.messages[0].ack()
    for message in second.messages:
        message.ack()
    assert {*first.wait(1), *second.wait(3)} == {0, 1, 2, 3}


def test_several_queues_are_consumed_within_one_prefetch_count(connect: Connect) -> None:
    """With a prefetch count below the number of queues, some queues would never be read."""
    queues = [kombu.Queue(f"jobs{number}") for number in range(3)]
    for number, queue in enumerate(queues):
        publish(connect(), queue, number)
    consumed = Consumed(connect(), *queues, prefetch=1)
    for count in range(1, 4):
        consumed.wait(count)
        consumed.messages[-1].ack()
    assert sorted(consumed.wait(3)) == [0, 1, 2]


def test_a_message_without_acknowledgement_is_delivered_once(connect: Connect) -> None:
    """It would come again after each visibility timeout."""
    queue = kombu.Queue("jobs", no_ack=True)
    publish(connect(), queue, "one")
    first = connect(visibility_timeout=1)
    Consumed(first, queue).wait(1)
    first.release()
    later = Consumed(connect(visibility_timeout=1), queue)
    with pytest.raises(socket.timeout):
        later.connection.drain_events(timeout=2)


def test_simple_queues_get_put_and_purge(connect: Connect) -> None:
    """`celery purge` and scripts use single requests."""
    with closing(connect().SimpleQueue("simple")) as queue:
        for number in range(3):
            queue.put({"number": number})
        message = queue.get(timeout=LIMIT_S)
        message.ack()
        assert queue.clear() == 2
        with pytest.raises(queue.Empty):
            queue.get_nowait()
    with closing(connect().SimpleBuffer("buffer")) as queue:
        queue.put("kept until it is read")
        assert queue.get(timeout=LIMIT_S).payload == "kept until it is read"


def test_two_consumers_on_a_channel_end_separately(connect: Connect) -> None:
    """The first would go on for ever, and hide messages from all workers."""
    connection = connect(visibility_timeout=3600)
    queues = [connection.SimpleQueue("simple") for _ in range(2)]
    for number in range(4):
        queues[0].put(number)
    for queue in [*queues, *queues]:
        queue.get(timeout=LIMIT_S).ack()
    for queue in queues:
        queue.close()
    with closing(connect().SimpleQueue("simple")) as later:
        for number in range(6):
            later.put(number)
        assert sorted(later.get(timeout=LIMIT_S).payload for _ in range(6)) == list(range(6))


def test_a_message_that_nobody_took_is_no_dead_letter(connect: Connect) -> None:
    """A script that gets one message at each start would make dead letters of the others."""
    connection = connect(visibility_timeout=3600)
    with closing(connection.SimpleQueue("simple")) as queue:
        for number in range(30):
            queue.put(number)
    got = []
    for _ in range(30):
        with closing(connection.SimpleQueue("simple")) as queue:
            got.append(queue.get(timeout=LIMIT_S))
            got[-1].ack()
    assert sorted(message.payload for message in got) == list(range(30))
    assert not any(message.delivery_info["redelivered"] for message in got)


@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_a_consumer_remains_when_another_one_on_its_channel_ends(connect: Connect, kind: str) -> None:
    """Its messages would be released without a handler again and again, until they are dead letters."""
    connection = connect(visibility_timeout=3600)
    remaining, ending = (getattr(connection, kind)("simple") for _ in range(2))
    for queue in (remaining, ending):
        queue.put("before")
        queue.get(timeout=LIMIT_S)
    ending.close()
    with closing(remaining):
        remaining.put("after")
        message = remaining.get(timeout=LIMIT_S)
    assert (message.payload, message.delivery_info["redelivered"]) == ("after", False)


def test_a_temporary_queue_keeps_what_nobody_consumes_any_more(connect: Connect) -> None:
    """What had arrived for a consumer that ended would be lost."""
    connection = connect()
    with closing(connection.SimpleBuffer("buffer")) as first:
        first.put("one")
        first.put("two")
        assert first.get(timeout=LIMIT_S).payload == "one"
        wait_until(lambda: connection.transport.receiver.inbox._items)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0)
    assert connection.SimpleBuffer("buffer").get(timeout=LIMIT_S).payload == "two"


def test_each_channel_gets_what_it_has_requested(connect: Connect) -> None:
    """One would get more than its prefetch count, as the messages of others came to its callback."""
    connection, queue = connect(), kombu.Queue("jobs")
    channels = [Consumed(connection, queue, prefetch=1) for _ in range(2)]
    publish(connect(), queue, *range(3))
    while not all(consumed.messages for consumed in channels):
        connection.drain_events(timeout=LIMIT_S)
    channels[0].nothing_more()
    for consumed in channels:
        [message] = consumed.messages
        assert message.channel is consumed.channel
    channels[0].messages[0].ack()
    channels[0].wait(2)
    channels[0].messages[1].ack()
    channels[1].consumer.cancel()
    publish(connect(), queue, 3)
    assert channels[0].wait(3)[2] == 3
    assert not channels[0].messages[2].delivery_info["redelivered"]


def test_only_a_consumer_without_acknowledgements_acknowledges(connect: Connect) -> None:
    """The other consumer of its channel would lose what it had not acknowledged."""
    connection, queue = connect(), kombu.Queue("jobs")
    channel = connection.channel()
    got: dict[bool, list[Any]] = {True: [], False: []}
    for no_ack, messages in got.items():
        callback = kombu.Consumer(channel, [queue], no_ack=no_ack, on_message=messages.append)
        callback.consume()
    publish(connect(), queue, "one", "two")
    while not all(got.values()):
        connection.drain_events(timeout=LIMIT_S)
    connection.release()
    later = Consumed(connect(), queue)
    assert later.wait(1) == [got[False][0].payload]
    later.nothing_more()


def test_a_consumer_that_did_not_start_hides_no_message() -> None:
    """Its channel would receive until its end, as the queue counted as consumed."""
    queue, options = kombu.Queue("jobs"), {"visibility_timeout": 3600}
    with ClusterThread({}) as servers:
        url = f"rocketmq://{servers.cluster.namesrv_address}"
        with (
            kombu.Connection(url, transport_options=options) as first,
            kombu.Connection(url, transport_options=options) as second,
        ):
            channel = first.channel()
            config = servers.run(servers.stop_broker())
            with pytest.raises(first.connection_errors):
                channel.basic_consume("jobs", False, print, "fails")
            servers.run(servers.start_broker(config))
            channel.basic_consume("jobs", False, print, "starts")
            channel.basic_cancel("starts")
            consumed = Consumed(second, queue)
            publish(second, queue, "x")
            assert consumed.wait(1) == ["x"]


def test_the_size_of_a_queue_is_what_waits(connect: Connect) -> None:
    """Monitoring would show no backlog."""
    queue = kombu.Queue("jobs")
    publish(connect(), queue, *range(5))
    with connect().channel() as channel:
        assert queue(channel).queue_declare(passive=True).message_count == 5
        missing = kombu.Queue("missing")(channel)
        with pytest.raises(channel.connection.channel_errors):
            missing.queue_declare(passive=True)


def test_a_due_time_is_kept_by_the_broker(connect: Connect) -> None:
    """Workers would hold delayed tasks in their memory, within their prefetch count."""
    queue = kombu.Queue("jobs")
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    publish(connect(), queue, "later", headers={"eta": due.isoformat()})
    consumed = Consumed(connect(), queue)
    assert consumed.wait(1) == ["later"]
    assert datetime.now(UTC) >= due


def test_a_due_time_beyond_the_limit_is_left_to_the_worker(connect: Connect) -> None:
    """`apply_async(countdown=...)` would fail with what the broker cannot hold."""
    queue = kombu.Queue("jobs")
    due = datetime.now(UTC) + timedelta(days=400)
    publish(connect(), queue, "next year", headers={"eta": due.isoformat()})
    consumed = Consumed(connect(), queue)
    assert consumed.wait(1) == ["next year"]
    consumed.messages[0].ack()


def test_an_expired_message_is_discarded(connect: Connect) -> None:
    """A consumer would handle what its sender no longer wants."""
    queue = kombu.Queue("jobs")
    publish(connect(), queue, "old", expiration=0.001)
    time.sleep(0.01)
    publish(connect(), queue, "new")
    assert Consumed(connect(), queue).wait(1) == ["new"]


def test_every_queue_of_a_fanout_exchange_gets_a_copy(connect: Connect) -> None:
    """Remote control would reach one worker only."""
    exchange = kombu.Exchange("news", type="fanout")
    durable = kombu.Queue("archive", exchange)
    listeners = [
        Consumed(connect(), kombu.Queue(f"listener{number}", exchange, auto_delete=True))
        for number in range(2)
    ]
    publish(connect(), durable, "hello")
    for listener in [*listeners, Consumed(connect(), durable)]:
        assert listener.wait(1) == ["hello"]
        listener.messages[0].ack()
        listener.nothing_more()


def test_a_temporary_queue_gets_what_its_bindings_match(connect: Connect) -> None:
    """Replies and events would go to every process, or to none."""
    topics = kombu.Exchange("events", type="topic", delivery_mode=1)
    replies = kombu.Exchange("replies", type="direct", durable=False, delivery_mode=1)
    tasks = Consumed(connect(), kombu.Queue("a", topics, routing_key="task.#", exclusive=True))
    everything = Consumed(connect(), kombu.Queue("b", topics, routing_key="#", exclusive=True))
    mine = Consumed(connect(), kombu.Queue("c", replies, routing_key="mine", exclusive=True))
    with connect().channel() as channel:
        producer = kombu.Producer(channel)
        for key in ("worker.online", "task.sent"):
            producer.publish(key, exchange=topics, routing_key=key, declare=[topics])
        for key in ("others", "mine"):
            producer.publish(key, exchange=replies, routing_key=key, declare=[replies])
    assert everything.wait(2) == ["worker.online", "task.sent"]
    assert tasks.wait(1) == ["task.sent"]
    assert mine.wait(1) == ["mine"]
    for one in (tasks, everything, mine):
        one.nothing_more()


def test_a_temporary_queue_gets_one_copy(connect: Connect) -> None:
    """A worker would obey a command twice if two bindings match it."""
    exchange = kombu.Exchange("events", type="topic", delivery_mode=1)
    connection = connect()
    consumed = Consumed(connection, kombu.Queue("a", exchange, routing_key="task.#", exclusive=True))
    consumed.consumer.queues[0].bind_to(exchange, routing_key="#")
    with connect().channel() as channel:
        for text in ("one", "two"):
            kombu.Producer(channel).publish(
                text, exchange=exchange, routing_key="task.sent", declare=[exchange]
            )
    assert consumed.wait(2) == ["one", "two"]
    consumed.nothing_more()


def test_a_temporary_queue_gets_nothing_from_before(connect: Connect) -> None:
    """A new worker would obey yesterday's commands."""
    exchange = kombu.Exchange("news", type="fanout")
    with connect().channel() as channel:
        kombu.Producer(channel).publish("old", exchange=exchange, declare=[exchange])
    listener = Consumed(connect(), kombu.Queue("listener", exchange, auto_delete=True))
    with connect().channel() as channel:
        kombu.Producer(channel).publish("new", exchange=exchange, declare=[exchange])
    assert listener.wait(1) == ["new"]


def test_a_reply_goes_to_a_queue_that_only_its_reader_knows(connect: Connect) -> None:
    """The result backend rpc:// names a queue of another process."""
    reader = Consumed(
        connect(), kombu.Queue("reply-7", kombu.Exchange(""), "reply-7", auto_delete=True, durable=False)
    )
    with connect().channel() as channel:
        kombu.Producer(channel).publish("done", routing_key="reply-7", delivery_mode=1)
    assert reader.wait(1) == ["done"]


def test_a_message_without_a_queue_is_dropped_with_a_log(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong routing key would lose messages silently."""
    exchange = kombu.Exchange("jobs", type="direct")
    with connect().channel() as channel:
        kombu.Producer(channel).publish("lost", exchange=exchange, routing_key="typo", declare=[exchange])
    assert "routing key 'typo' was dropped" in caplog.text


def test_an_acknowledgement_waits_for_its_broker(caplog: pytest.LogCaptureFixture) -> None:
    """A task that ended while its broker restarted would run again."""
    caplog.set_level("INFO", "rocketpy.kombu")
    queue = kombu.Queue("jobs")
    with ClusterThread({}) as servers:
        connection = kombu.Connection(f"rocketmq://{servers.cluster.namesrv_address}")
        publish(connection, queue, "done")
        consumed = Consumed(connection, queue)
        consumed.wait(1)
        config = servers.run(servers.stop_broker())
        consumed.messages[0].ack()
        wait_until(lambda: "acknowledging again" in caplog.text)
        servers.run(servers.start_broker(config))
        connection.release()  # waits for the acknowledgement
    assert "may be delivered again" not in caplog.text


def test_a_message_that_cannot_be_kept_is_a_single_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The log of a worker would fill with one message while its task runs."""
    caplog.set_level("DEBUG", "rocketpy.kombu")
    queue, options = kombu.Queue("jobs"), {"visibility_timeout": 4}
    with ClusterThread({}) as servers:
        url = f"rocketmq://{servers.cluster.namesrv_address}"
        connection = kombu.Connection(url, transport_options=options)
        publish(connection, queue, "long")
        Consumed(connection, queue).wait(1)
        config = servers.run(servers.stop_broker())
        wait_until(lambda: "is over: another consumer may have it" in caplog.text)
        servers.run(servers.start_broker(config))
        connection.release()
    failed = [record for record in caplog.records if "could not be kept" in record.getMessage()]
    assert len(failed) > 1
    assert [record.levelname for record in failed].count("WARNING") == 1


def bad_body(value: object) -> bytes:
    """A body that is readable JSON, and must not be read if its message says that it is compressed."""
    properties = {"delivery_info": {"exchange": "news", "routing_key": "a.b"}, "body_encoding": "utf-8"}
    payload = {"body": json.dumps(value), "content-type": "application/json", "properties": properties}
    return envelope.encode(payload)


def dead_letters(namesrv: str, group: str) -> int:
    """How many messages of a group are dead letters."""
    with AdminClient(namesrv) as admin:
        try:
            queues = admin.topics.describe(f"%DLQ%{group}").queues
        except RouteNotFound:
            return 0
    return sum(offsets.max_offset for offsets in queues.values())


def test_a_message_that_cannot_be_decoded_is_a_dead_letter(namesrv: str) -> None:
    """A task would run with damaged arguments."""
    queue = kombu.Queue("jobs")
    with kombu.Connection(f"rocketmq://{namesrv}") as connection:
        channel = connection.channel()
        queue(channel).declare()
        asyncio.run(raw_send(Place(namesrv), "jobs", bad_body("bad"), 0x1))
        assert queue(channel).get() is None
        wait_until(lambda: dead_letters(namesrv, "kombu-jobs") == 1)
        consumed = Consumed(connection, queue)
        asyncio.run(raw_send(Place(namesrv), "jobs", bad_body("bad"), 0x1))
        publish(connection, queue, "good")
        assert consumed.wait(1) == ["good"]
        consumed.nothing_more()
        wait_until(lambda: dead_letters(namesrv, "kombu-jobs") == 2)


def test_a_broadcast_that_cannot_be_decoded_is_skipped(
    namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker would obey a damaged command."""
    exchange = kombu.Exchange("news", "topic", durable=False)
    with kombu.Connection(f"rocketmq://{namesrv}") as connection:
        queue = kombu.Queue("listener", exchange, routing_key="a.#", auto_delete=True)
        consumed = Consumed(connection, queue)
        text = f"TAGS\x01{broadcast_tag('news', None)}\x02"
        asyncio.run(raw_send(Place(namesrv), BROADCAST_TOPIC, bad_body("bad"), 0x1, text))
        wait_until(lambda: "cannot be decoded" in caplog.text)
        with connection.channel() as channel:
            kombu.Producer(channel).publish("good", exchange=exchange, routing_key="a.b")
        assert consumed.wait(1) == ["good"]


RETRIES = {"retry": True, "retry_policy": {"max_retries": 3, "interval_start": 0}}


def test_a_message_that_is_stored_less_durably_is_stored_once() -> None:
    """Each task would be stored twice while a slave is away, and raise nevertheless."""
    queue = kombu.Queue("jobs")
    with ClusterThread({"brokerRole": "SYNC_MASTER"}) as servers:
        namesrv = servers.cluster.namesrv_address
        with kombu.Connection(f"rocketmq://{namesrv}") as connection:
            with pytest.raises(NotDurable):
                publish(connection, queue, "x", **RETRIES)
            assert len(stored(namesrv, "jobs")) == 1
            with pytest.raises(MessageTooLarge):
                publish(connection, queue, "x" * (5 << 20), **RETRIES)


def test_a_message_is_published_again_once_its_broker_is_back() -> None:
    """A task would be lost that was sent during a restart of a broker."""
    queue = kombu.Queue("jobs")
    with ClusterThread({}) as servers:
        namesrv = servers.cluster.namesrv_address
        with kombu.Connection(f"rocketmq://{namesrv}") as connection:
            publish(connection, queue, "before")
            config = servers.run(servers.stop_broker())
            with pytest.raises(kombu.exceptions.OperationalError):
                publish(connection, queue, "lost", **RETRIES)

            def restart(_error: Exception, _interval: float) -> None:
                if not servers.cluster.brokers:
                    servers.run(servers.start_broker(config))

            policy = {"interval_start": 0, "errback": restart}
            named = kombu.Queue("named", kombu.Exchange("named"), routing_key="named")
            publish(connection, named, "after", retry=True, retry_policy=policy)
        assert len(stored(namesrv, "named")) == 1


def test_a_message_of_another_program_arrives(namesrv: str) -> None:
    """A worker would stop at it forever."""
    with Producer("other", namesrv) as producer:
        producer.send(Message("jobs", b"\xff\x00 plain bytes"))
    with kombu.Connection(f"rocketmq://{namesrv}") as connection:
        consumed = Consumed(connection, kombu.Queue("jobs", accept=["application/data"]))
        consumed.consumer.accept = {"application/data"}
        end = time.monotonic() + LIMIT_S
        while not consumed.messages and time.monotonic() < end:
            connection.drain_events(timeout=LIMIT_S)
        assert consumed.messages[0].body == b"\xff\x00 plain bytes"
        consumed.messages[0].ack()


def test_a_message_is_found_by_the_id_of_its_task(namesrv: str) -> None:
    """Operators could not find the message of a task."""
    queue = kombu.Queue("jobs")
    with kombu.Connection(f"rocketmq://{namesrv}") as connection:
        publish(connection, queue, 1, headers={"id": "task-1", "eta": "2000-01-01T00:00:00+00:00"})
    [message] = stored(namesrv, "jobs")
    assert message.keys == ("task-1",)


def test_a_connection_without_servers_fails() -> None:
    """Celery retries a connection only if it fails with an error of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    connection = kombu.Connection(f"rocketmq://127.0.0.1:{port}")
    with pytest.raises(connection.connection_errors):
        connection.connect()


def exists(connection: kombu.Connection, topic: str) -> bool:
    """Whether there is a topic of this name."""
    session = connection.transport.session
    found: bool = session.run(session.exists(topic))
    return found


def test_a_deleted_temporary_queue_gets_no_topic(connect: Connect, prefix: str) -> None:
    """Topics and groups would remain of all queues for replies, and would get messages that nobody reads."""
    connection = connect()
    exchange = kombu.Exchange("news", "topic", durable=False)
    with connection.channel() as channel:
        queue = kombu.Queue("replies", exchange, routing_key="a.#", auto_delete=True)(channel)
        queue.declare()
        queue.bind_to(exchange, routing_key="b.#")
        queue.delete()
        queue.delete()
        kombu.Producer(channel).publish("x", exchange=exchange, routing_key="a.b")
    assert not exists(connection, f"{prefix}replies")


def test_a_deleted_queue_without_an_exchange_is_empty(connect: Connect) -> None:
    """Tasks that were deleted would run."""
    connection, queue = connect(), kombu.Queue("jobs")
    publish(connection, queue, "old")
    with connection.channel() as channel:
        queue(channel).delete()
        assert queue(channel).get() is None


def test_a_transient_message_reaches_a_queue_that_others_have_declared(connect: Connect) -> None:
    """It would be broadcast, which only temporary queues get, and so be lost."""
    consumer, producer = connect(), connect()
    consumed = Consumed(consumer, kombu.Queue("jobs"))
    consumer.transport.session.durable.clear()  # as in another process
    with producer.channel() as channel:
        kombu.Producer(channel).publish("x", routing_key="jobs", delivery_mode=1)
    assert consumed.wait(1) == ["x"]


@pytest.mark.parametrize("info", [[1], {"exchange": "news", "routing_key": [1]}])
def test_no_broadcast_of_another_program_ends_broadcasts(connect: Connect, prefix: str, info: object) -> None:
    """Remote control and events would stop without an error."""
    connection = connect()
    exchange = kombu.Exchange("news", "topic", durable=False)
    queue = kombu.Queue("listener", exchange, routing_key="a.#", auto_delete=True)
    consumed = Consumed(connection, queue)
    body = json.dumps({"body": "x", "properties": {"delivery_info": info}}).encode()
    session = connection.transport.session
    foreign = Message(prefix + BROADCAST_TOPIC, body, tags=broadcast_tag("news", None))
    session.run(session.send(foreign))
    with connection.channel() as channel:
        kombu.Producer(channel).publish("good", exchange=exchange, routing_key="a.b")
    assert consumed.wait(1) == ["good"]
