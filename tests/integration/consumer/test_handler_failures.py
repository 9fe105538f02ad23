"""Handlers with defects: every exception and wrong result keeps the consumer running, and its messages."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rocketpy import (
    AdminClient,
    Later,
    MessageExt,
    MessageModel,
    Producer,
    PushConfig,
    PushConsumer,
    TypedTopic,
)
from rocketpy.errors import ConfigInvalid, UsageError
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import Seen, consuming, send, texts
from tests.waiting import until


class Unshowable(Exception):
    """An exception whose texts fail."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    __str__ = __repr__


class NamelessType(type):
    """As of some frameworks that compute the names of their types."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Nameless(Exception, metaclass=NamelessType):
    """An exception whose type has no name."""


class LazyText(str):
    """As a lazy translation: it can be shown only in its context."""

    def __format__(self, _spec: str) -> str:
        raise ValueError("no language")

    def __bool__(self) -> bool:
        raise ValueError("no language")

    __slots__ = ()


class Lazy(Exception):
    """An exception whose text is of a type of its own."""

    def __str__(self) -> str:
        return LazyText("later")


class Own(BaseException):
    """As the exceptions of some frameworks: no Exception."""


async def cancelled_elsewhere() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


FAULTS: dict[str, Any] = {
    "repr": Unshowable,
    "type name": Nameless,
    "text": Lazy,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base": Own,
    "stop iteration": StopIteration,
    "later: level": lambda: Later(delay_level="3"),  # type: ignore[arg-type]
    "later: done": lambda: Later(done=None),  # type: ignore[arg-type]
    "later: pause": lambda: Later(suspend_ms=0.5),  # type: ignore[arg-type]
    "later: bool": lambda: Later(delay_level=True),
    "later: huge": lambda: Later(delay_level=2**40),
    "later: reason": lambda: Later(reason=7),  # type: ignore[arg-type]
}


def fail(fault: str) -> None:
    found = FAULTS[fault]()
    if isinstance(found, BaseException):
        raise found


class Faulty:
    """Handlers that fail at the first delivery of each message."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.done: Counter[bytes] = Counter()
        self.first: set[bytes] = set()

    def plain(self, message: MessageExt) -> None:
        if message.body not in self.first:
            self.first.add(message.body)
            fail(self.fault)
        self.done[message.body] += 1

    async def coroutine(self, message: MessageExt) -> None:
        await asyncio.sleep(0)
        self.plain(message)

    def awaitable(self, message: MessageExt) -> Any:
        return self.coroutine(message)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize(
    ("handler", "config"),
    [("coroutine", {}), ("plain", {}), ("plain", {"threads": False}), ("awaitable", {})],
    ids=["async", "threads", "loop", "awaitable"],
)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_handler_that_fails(
    cluster: EmbeddedCluster,
    producer: Producer,
    fault: str,
    handler: str,
    config: dict[str, Any],
    orderly: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One exception of the application would end the consumer, and its messages would wait forever."""
    sent = await send(producer, *texts("m", 6))
    faulty = Faulty(fault)
    async with consuming(
        cluster, getattr(faulty, handler), orderly=orderly, suspend_ms=10, **config
    ) as consumer:
        await until(lambda: len(faulty.done) == 6)
        assert consumer.health().problems == ()
    assert set(faulty.done) == set(sent)
    assert f"Faulty.{handler} failed" in caplog.text


async def test_a_future_cancelled_by_others(cluster: EmbeddedCluster, producer: Producer) -> None:
    """A handler that awaits a task which another part of the application cancels would end the consumer."""
    seen = Counter[bytes]()

    async def handle(message: MessageExt) -> None:
        seen[message.body] += 1
        if seen[message.body] == 1:
            await cancelled_elsewhere()

    await send(producer, "x", "y")
    async with consuming(cluster, handle) as consumer:
        await until(lambda: seen == {b"x": 2, b"y": 2})
        assert consumer.health().ok


# -- results of a foreign type -----------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize(
    "result", [True, False, "ok", 0, Unshowable()], ids=lambda result: type(result).__name__
)
async def test_a_result_of_a_foreign_type(
    cluster: EmbeddedCluster,
    producer: Producer,
    result: object,
    orderly: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A backlog would go to the dead letters because of a `return True`, with a line for each message."""
    sent = await send(producer, *texts("m", 40))
    seen = Seen(lambda _: result)
    config: dict[str, Any] = {"orderly": orderly, "max_reconsume_times": 0, "suspend_ms": 10}
    async with consuming(cluster, seen, **config) as consumer:
        await until(lambda: len(seen.messages) == (4 if orderly else 40))
        await until(lambda: not consumer.health().ok)
        (problem,) = consumer.health().problems
        assert "sdk_groups.Seen" in problem
        assert "topic T" in problem
        assert sum(offset for queue, offset in consumer.progress().items()) == 0
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == 1
    assert problem in lines[0].getMessage()
    async with AdminClient(cluster.namesrv_address) as admin:
        assert await admin.dead_letters.groups() == ()
    fixed = Seen()
    async with consuming(cluster, fixed, **config):
        await fixed.until(40)
    assert set(fixed.bodies) == set(sent)
    assert all(message.reconsume_times == 0 for message in fixed.messages)


async def test_other_messages_go_on_beside_a_foreign_result(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """One branch of a handler that returns a wrong value would stop all messages."""
    await send(producer, *texts("m", 40))
    seen = Seen(lambda message: False if message.body == b"m 3" else None)
    async with consuming(cluster, seen):
        await seen.until(40)
        later = await send(producer, *texts("later", 40))
        await seen.until(80)
    assert set(later) < set(seen.bodies)


# -- when a handler is given -------------------------------------------------------------------------------


async def takes_two(message: MessageExt, other: object) -> None: ...


def takes_none() -> None: ...


def keyword_only(*, message: MessageExt) -> None: ...


async def generates(message: MessageExt) -> Any:
    yield message


@pytest.mark.parametrize("handler", [takes_two, takes_none, keyword_only, generates, "text", 7])
def test_a_handler_that_cannot_be_called(handler: Any) -> None:
    """Each message would fail, and go to the dead letters after 16 deliveries."""
    named = getattr(handler, "__name__", repr(handler))
    with pytest.raises(ConfigInvalid, match=named):
        PushConsumer("g", "127.0.0.1:9876", handler)
    with pytest.raises(ConfigInvalid, match=named):
        PushConsumer("g", "127.0.0.1:9876", batch_handler=handler, config=PushConfig(batch_size=2))


def test_handlers_that_can_be_called() -> None:
    """Decorators, methods, builtins and callable objects would be rejected."""
    topic = TypedTopic[str]("T", str.encode, bytes.decode)

    def optional(message: MessageExt, other: int = 0) -> None: ...

    def any_arguments(*args: object, **kwargs: object) -> None: ...

    @topic.handler
    async def typed(value: str, message: MessageExt) -> None: ...

    bound, recorded = Faulty("repr").plain, list[object]().append
    handlers: list[Any] = [optional, any_arguments, typed, recorded, print, Seen(), lambda _: None, bound]
    for handler in handlers:
        PushConsumer("g", "127.0.0.1:9876", handler)


def test_a_typed_handler_that_cannot_be_called() -> None:
    """A handler of one argument would fail for each message; the check sees only the function around it."""
    topic = TypedTopic[str]("T", str.encode, bytes.decode)
    with pytest.raises(ConfigInvalid, match="takes_none"):
        topic.handler(takes_none)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="undecodable"):
        TypedTopic[str]("T", str.encode, bytes.decode, undecodable=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fault", ["later: level", "later: done", "later: pause", "later: bool", "later: huge"]
)
def test_wrong_fields_of_later(fault: str) -> None:
    """The error would come where the field is used, in a task of the consumer."""
    with pytest.raises(UsageError, match="it must be a whole number from"):
        FAULTS[fault]()


# -- log lines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["handler", "broadcasting", "decoder"])
async def test_repeated_failures_in_the_log(
    cluster: EmbeddedCluster,
    producer: Producer,
    kind: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A backlog whose handler fails would fill the disk with its tracebacks."""
    failures = 0

    def broken(_: object) -> str:
        nonlocal failures
        failures += 1
        raise ValueError("broken")

    topic = TypedTopic[str]("T", str.encode, broken, undecodable=None)
    handler: Any = broken
    if kind == "decoder":
        handler = topic.handler(lambda _, __: None)
    model = MessageModel.BROADCASTING if kind == "broadcasting" else MessageModel.CLUSTERING
    await send(producer, *texts("m", 300))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    config: dict[str, Any] = {"threads": False, "model": model, "offset_directory": tmp_path}
    async with consuming(cluster, handler, **config, max_reconsume_times=0):
        await until(lambda: failures == 300)
    took_s = loop.time() - began_s
    lines = [record.getMessage() for record in caplog.records if record.name == "rocketpy.consumer"]
    about = [line for line in lines if "failed" in line or "cannot be decoded" in line]
    logged = [line for line in about if "more times" not in line]
    counts = [int(count) for line in about for count in re.findall(r"(\d+) more (?:like|times)", line)]
    if kind == "handler":
        assert len(logged) + sum(counts) == 300
    assert len(lines) <= 3 * (took_s + 2)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_whose_task_is_cancelled(
    cluster: EmbeddedCluster, producer: Producer, orderly: bool
) -> None:
    """Its message would stay in progress forever: never handled again, and no offset after it stored."""
    cancelled: set[bytes] = set()
    handled: Counter[bytes] = Counter()

    async def handle(message: MessageExt) -> None:
        if message.body not in cancelled and len(cancelled) < 3:
            cancelled.add(message.body)
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)  # as a time limit of the application may do
            await asyncio.Event().wait()
        handled[message.body] += 1

    bodies = await send(producer, *texts("m", 20))
    async with consuming(cluster, handle, orderly=orderly, suspend_ms=10) as consumer:
        await until(lambda: len(handled) == 20)
        assert len(cancelled) == 3
        await until(lambda: sum(of for q, of in consumer.progress().items() if q.topic == "T") == 20)
        assert consumer.health().ok
        await send(producer, "later")
        await until(lambda: handled[b"later"] == 1)
    assert set(handled) == {*bodies, b"later"}
    assert set(handled.values()) == {1}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_cancellation_at_the_end_of_a_handler(
    cluster: EmbeddedCluster, producer: Producer, orderly: bool
) -> None:
    """A time limit of the application that comes too late would end the queue's handling."""
    handled: Counter[bytes] = Counter()

    async def handle(message: MessageExt) -> None:
        handled[message.body] += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    await send(producer, *texts("m", 20))
    async with consuming(cluster, handle, orderly=orderly) as consumer:
        await until(lambda: sum(of for q, of in consumer.progress().items() if q.topic == "T") == 20)
        assert consumer.health().ok
    assert set(handled.values()) == {1}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_cancellation_while_the_consumer_closes(
    cluster: EmbeddedCluster, producer: Producer, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A time limit of the application would be reported as a defect of the consumer."""
    running: list[asyncio.Task[Any]] = []

    async def handle(_: MessageExt) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append(task)
        await asyncio.Event().wait()

    await send(producer, "one")
    async with consuming(cluster, handle, orderly=orderly) as consumer:
        await until(lambda: running)
        member = consumer.member
        closing = asyncio.ensure_future(consumer.close())
        await until(lambda: member.closing)
        for _ in range(10):  # the handlers' service closes next
            await asyncio.sleep(0)
        running[0].cancel()
        assert await closing
    assert "rocketpy.tasks" not in {record.name for record in caplog.records}


async def test_an_idle_worker_that_is_cancelled(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The next message would wait for a worker that is gone."""
    seen = Seen()
    async with consuming(cluster, seen) as consumer:
        await send(producer, "one")
        await seen.until(1)
        (worker,) = [task for task in asyncio.all_tasks() if task.get_name() == "handlers"]
        worker.cancel()
        await asyncio.wait({worker})
        await send(producer, *texts("m", 3))
        await seen.until(4)
        assert consumer.health().ok
