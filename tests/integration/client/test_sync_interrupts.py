"""Ctrl-C during calls of blocking clients: each ends at once, and the client can be closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from rocketpy import LocalTransactionState, Message, ProducerConfig
from rocketpy.client.instance import _instances
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import QueryConsumerOffsetResponseHeader
from rocketpy.protocol.remoting.command import Command
from rocketpy.sync import AdminClient, LitePullConsumer, Producer, PullConsumer, PushConsumer
from rocketpy.sync.loop_thread import LoopThread
from rocketpy.transport import Channel
from tests.integration.access_place import Thread
from tests.integration.sdk_peers import SENDS, Names, Peer, stored

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)
SILENT = {*SENDS, RequestCode.PULL_MESSAGE, RequestCode.SEND_MESSAGE}

OFFSETS: dict[int, int] = {
    RequestCode.QUERY_CONSUMER_OFFSET: 0,
    RequestCode.GET_MIN_OFFSET: 0,
    RequestCode.GET_MAX_OFFSET: 10,
}


class Servers:
    """A name server, and a broker that responds neither to sends nor to pulls, on a thread of their own."""

    def __init__(self) -> None:
        self.silent = SILENT
        self._thread = Thread()
        self._names, self._broker = Names(), Peer(self._respond)

    def __enter__(self) -> Self:
        self._thread.run(self._broker.start())
        self._names.routes = {name: {"a": self._broker.address} for name in ("T", "%RETRY%g")}
        self._thread.run(self._names.start())
        return self

    @property
    def address(self) -> str:
        """The address of the name server."""
        return self._names.address

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._names.close())
        self._thread.run(self._broker.close())
        self._thread.close()

    def _respond(self, _: Channel, request: Command) -> Command | bytes | None:
        if request.code in OFFSETS:
            return request.reply(header=QueryConsumerOffsetResponseHeader(offset=OFFSETS[request.code]))
        return None if request.code in self.silent else stored(request)


@pytest.fixture
def servers() -> Iterator[Servers]:
    """A name server whose broker is silent."""
    with Servers() as started:
        yield started


@pytest.fixture
def namesrv(servers: Servers) -> str:
    """The address of the name server."""
    return servers.address


@contextmanager
def interrupted() -> Iterator[None]:
    """Press Ctrl-C once the main thread waits for the event loop of the blocking clients."""
    main = threading.get_ident()
    over = threading.Event()

    def is_waiting() -> bool:
        frame, names = sys._current_frames().get(main), []
        while frame is not None:
            names.append((frame.f_code.co_name, frame.f_code.co_filename.rpartition("/")[2]))
            frame = frame.f_back
        return ("run", "loop_thread.py") in names and names[0] == ("wait", "threading.py")

    def press() -> None:
        while not is_waiting():
            if over.wait(0.001):
                return
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()


def left() -> list[str]:
    """What still runs in the event loop of the blocking clients."""

    async def look() -> list[str]:
        loop = asyncio.get_running_loop()
        tasks = [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        return tasks + [repr(client) for client in _instances.get(loop, {})]

    return LoopThread.get().run(look())


def expect_nothing_left(loop: LoopThread) -> None:
    """The loop is the one as before, and idle."""
    assert LoopThread.get() is loop
    assert left() == []


def send(producer: Producer) -> None:
    producer.send(Message("T", b"x"))


def send_batch(producer: Producer) -> None:
    producer.send_batch([Message("T", b"x"), Message("T", b"y")])


def flush(producer: Producer) -> None:
    producer.send_async(Message("T", b"x"))
    producer.flush()


def request(producer: Producer) -> None:
    producer.request(Message("T", b"x"), timeout_ms=100_000)


def transaction(producer: Producer) -> None:
    producer.check_transactions(lambda _: LocalTransactionState.UNKNOWN)
    producer.send_in_transaction(Message("T", b"x"), local_transaction=lambda _: pytest.fail("was not sent"))


@pytest.mark.parametrize("call", [send, send_batch, flush, request, transaction])
def test_a_call_of_a_producer_is_interrupted(namesrv: str, call: Callable[[Producer], None]) -> None:
    """A script could not be stopped while a broker does not respond."""
    loop = LoopThread.get()
    producer = Producer("g", namesrv, config=ProducerConfig(send_timeout_ms=100_000, close_timeout_ms=1))
    producer.start()
    with interrupted():
        call(producer)
    producer.close()
    expect_nothing_left(loop)


def test_the_close_of_a_producer_is_interrupted(namesrv: str) -> None:
    """A program would hang at its end, and Ctrl-C would leave connections that nobody can close."""
    loop = LoopThread.get()
    producer = Producer("g", namesrv, config=ProducerConfig(send_timeout_ms=2000, close_timeout_ms=100_000))
    producer.start()
    producer.send_async(Message("T", b"x"))
    with interrupted():
        producer.close()
    producer.close()  # waits for the first close, and so for the timeout of the send
    expect_nothing_left(loop)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_the_close_of_a_consumer_is_interrupted(servers: Servers, kind: Any) -> None:
    """The member would stay in its group, and the connections open."""
    loop = LoopThread.get()
    consumer = _client(kind, servers.address)
    consumer.subscribe("T")
    consumer.start()
    servers.silent = {RequestCode.UNREGISTER_CLIENT, RequestCode.PULL_MESSAGE}
    with interrupted():
        consumer.close()
    consumer.close()  # waits for the first close, and so for the timeout of its request
    expect_nothing_left(loop)


@pytest.mark.parametrize("kind", [Producer, PullConsumer, LitePullConsumer, PushConsumer, AdminClient])
def test_a_start_is_interrupted(kind: Any) -> None:
    """A client that was interrupted at its start would keep connections, or could not be started again."""
    loop = LoopThread.get()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        address = full.getsockname()
        while True:  # fill the queue of connections, so that the next one waits
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
            waiting.settimeout(0.05)
            try:
                waiting.getpeername()
            except OSError:
                break
        client = _client(kind, f"127.0.0.1:{address[1]}")
        for _ in range(2):
            with interrupted():
                client.start()
            assert left() == []
        client.close()
        expect_nothing_left(loop)


def _client(kind: Any, namesrv: str) -> Any:
    if kind is AdminClient:
        return AdminClient(namesrv)
    if kind is PushConsumer:
        return PushConsumer("g", namesrv, lambda _: None)
    return kind("g", namesrv)


def pull(consumer: PullConsumer) -> None:
    consumer.pull(QUEUE, 0, 1, timeout_ms=100_000)


def test_a_pull_is_interrupted(namesrv: str) -> None:
    """A reader could not be stopped while a broker does not respond."""
    loop = LoopThread.get()
    consumer = PullConsumer("g", namesrv)
    consumer.start()
    with interrupted():
        pull(consumer)
    consumer.close()
    expect_nothing_left(loop)


def poll(consumer: LitePullConsumer) -> None:
    consumer.poll(100_000)


def iterate(consumer: LitePullConsumer) -> None:
    next(iter(consumer))


@pytest.mark.parametrize("call", [poll, iterate])
def test_a_poll_is_interrupted(namesrv: str, call: Callable[[LitePullConsumer], None]) -> None:
    """A program that waits for messages could only be killed, without its offsets."""
    loop = LoopThread.get()
    consumer = LitePullConsumer("g", namesrv)
    consumer.start()
    consumer.assign([QUEUE])
    for _ in range(2):
        with interrupted():
            call(consumer)
    consumer.close()
    expect_nothing_left(loop)


def test_a_loop_over_messages_is_interrupted(namesrv: str) -> None:
    """The iterator would still read when it is closed, and print an error instead."""
    loop = LoopThread.get()
    admin = AdminClient(namesrv)
    admin.start()
    with interrupted():
        for _ in admin.messages.of_queue(QUEUE, 0, 10):
            pytest.fail("the broker is silent")
    admin.close()
    expect_nothing_left(loop)
