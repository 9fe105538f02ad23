"""Context variables in handlers: none leaks from one call to another."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from rocketpy import AdminClient, ClientConfig, MessageExt, Producer, PushConfig, PushConsumer, sync
from rocketpy.config import MessageTraceConfig
from rocketpy.hooks import ProcessEvent
from rocketpy.protocol.message.trace import ConsumeOutcome
from rocketpy.protocol.remoting.command import Command
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.sdk_groups import FIRST, consuming, send, texts
from tests.integration.sdk_peers import SENDS
from tests.waiting import LIMIT_S, until

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
REGION: contextvars.ContextVar[Any] = contextvars.ContextVar("region", default="nowhere")


class Leaking:
    """Handlers that record the variables which they find, and leave them changed."""

    def __init__(self) -> None:
        self.found: list[tuple[str, object]] = []
        self.messages: list[MessageExt] = []

    def plain(self, message: MessageExt) -> None:
        self.messages.append(message)
        self.found.append((TENANT.get(), REGION.get()))
        TENANT.set(f"tenant of {message.body!r}")
        REGION.set("changed")

    def in_batches(self, messages: list[MessageExt]) -> None:
        self.plain(messages[0])

    async def returning(self, message: MessageExt) -> None:
        self.plain(message)

    async def waiting(self, message: MessageExt) -> None:
        self.plain(message)
        await asyncio.sleep(0)
        own = f"tenant of {message.body!r}"
        assert (TENANT.get(), await asyncio.create_task(read())) == (own, own)

    def with_awaitable(self, message: MessageExt) -> Any:
        return self.waiting(message)

    def failing(self, message: MessageExt) -> None:
        self.plain(message)
        if message.reconsume_times == 0:
            raise ValueError("a call that fails leaves its variables, too")


async def read() -> str:
    return TENANT.get()


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize(
    ("handler", "config"),
    [
        ("returning", {}),
        ("waiting", {}),
        ("plain", {}),
        ("plain", {"threads": False}),
        ("with_awaitable", {}),
        ("with_awaitable", {"threads": False}),
        ("failing", {"suspend_ms": 10}),
        ("failing", {"threads": False, "suspend_ms": 10}),
    ],
)
async def test_a_call_sees_no_variable_of_another(
    cluster: EmbeddedCluster, producer: Producer, handler: str, config: dict[str, Any], orderly: bool
) -> None:
    """A message would be handled with the tenant, or in the trace, of the message before it."""
    await send(producer, *texts("m", 40))
    REGION.set("where the consumer started")
    leaking = Leaking()
    calls = 80 if handler == "failing" else 40
    async with consuming(cluster, getattr(leaking, handler), orderly=orderly, concurrency=2, **config):
        REGION.set("set after the start")
        await until(lambda: len(leaking.found) == calls)
    assert set(leaking.found) == {("none", "where the consumer started")}
    assert REGION.get() == "set after the start"


@pytest.mark.parametrize("threads", [True, False])
async def test_calls_with_batches_and_on_request(
    cluster: EmbeddedCluster, producer: Producer, threads: bool
) -> None:
    """A batch, or a message that an operator sends to a member, would see the variables of another call."""
    await send(producer, *texts("m", 8))
    leaking = Leaking()
    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        batch_handler=leaking.in_batches,
        config=PushConfig(batch_size=2, threads=threads, concurrency=1, consume_from=FIRST),
    )
    consumer.subscribe("T")
    async with consumer, AdminClient(cluster.namesrv_address) as admin:
        await until(lambda: sum(consumer.progress().values()) == 8)
        calls = len(leaking.found)
        for message in leaking.messages[:2]:
            await admin.messages.deliver(message, "g", consumer.member.client.client_id)
        assert len(leaking.found) == calls + 2
    assert set(leaking.found) == {("none", "nowhere")}


class Uncomparable:
    """As arrays of numpy and columns of SQLAlchemy: == has no truth value."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


async def test_values_that_cannot_be_compared(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The consumer would fail because of a value that the application keeps in a context variable."""
    found: list[object] = []

    async def handle(_: MessageExt) -> None:
        found.append(REGION.get())
        REGION.set(Uncomparable())

    REGION.set(outside := Uncomparable())
    await send(producer, *texts("m", 20))
    async with consuming(cluster, handle, concurrency=1) as consumer:
        await until(lambda: len(found) == 20)
        assert consumer.health().ok
    assert all(value is outside for value in found)


class Bracket:
    """A listener that sets a variable for the handler, and resets it with its token."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.ended = 0

    def process_started(self, event: ProcessEvent) -> None:
        event.state[self] = TENANT.set("of the listener")

    def process_ended(
        self, event: ProcessEvent, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        self.ended += 1
        try:
            TENANT.reset(event.state[self])
        except ValueError as wrong:
            self.errors.append(wrong)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("handler", ["returning", "waiting", "plain", "with_awaitable"])
async def test_a_listener_shares_the_context_of_its_call(
    cluster: EmbeddedCluster, producer: Producer, handler: str, orderly: bool
) -> None:
    """A tracer could not end what it began, as its token would belong to another context."""
    bracket, leaking = Bracket(), Leaking()
    await send(producer, *texts("m", 20))
    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        getattr(leaking, handler),
        config=PushConfig(orderly=orderly, consume_from=FIRST),
        listeners=[bracket],
    )
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: bracket.ended == 20)
    assert not bracket.errors
    assert set(leaking.found) == {("of the listener", "nowhere")}


async def test_a_blocking_consumer(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Blocking applications would lose the context of the thread that starts the consumer."""
    leaking = Leaking()
    await send(producer, *texts("m", 20))

    def work() -> None:
        REGION.set("of the thread")
        consumer = sync.PushConsumer(
            "g", cluster.namesrv_address, leaking.plain, config=PushConfig(consume_from=FIRST)
        )
        consumer.subscribe("T")
        with consumer:
            ended.wait(LIMIT_S)

    ended = threading.Event()
    working = asyncio.create_task(asyncio.to_thread(work))
    await until(lambda: len(leaking.found) == 20)
    ended.set()
    await working
    assert set(leaking.found) == {("none", "of the thread")}


class Requests:
    """An RPC hook that records the tenant of each send."""

    def __init__(self) -> None:
        self.tenants: list[str] = []
        self.responses = 0

    def before_request(self, address: str, request: Command) -> None:
        if request.code in SENDS:
            self.tenants.append(TENANT.get())

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.responses += request.code in SENDS


async def test_trace_reports_belong_to_no_call(cluster: EmbeddedCluster, producer: Producer) -> None:
    """The reports of several calls would be sent with the tenant of the last of them."""
    leaking, requests = Leaking(), Requests()
    trace = MessageTraceConfig(batch_count=2, linger_ms=60_000)
    consumer = PushConsumer(
        "g",
        cluster.namesrv_address,
        leaking.returning,
        config=PushConfig(consume_from=FIRST, message_trace=trace),
        client=ClientConfig(rpc_hooks=(requests,)),
    )
    consumer.subscribe("T")
    async with consumer:
        for number in range(4):  # each call reports its start and its end, while nothing else is in flight
            await send(producer, f"m{number}")
            await until(lambda: requests.responses > number)  # noqa: B023 - it is awaited here
    assert requests.tenants == ["none"] * 4
