"""The web console with RocketMQ's servers: every page, and every change that it offers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from html import unescape
from typing import Any

import pytest

from rocketpy import (
    ConsumeFrom,
    Later,
    Message,
    MessageExt,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from tests.integration.console.browser import Browser, browsing
from tests.interop.cluster import Cluster
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer
from tests.interop.sides import ALL_VERSIONS, OUR_SDK, Side, serve
from tests.mqproducer.place import eventually

pytestmark = pytest.mark.interop

PRODUCER = ProducerConfig(send_timeout_ms=15_000, batching=False, message_trace=MessageTraceConfig())
CONSUMER = PushConfig(
    consume_from=ConsumeFrom.FIRST_OFFSET, persist_interval_ms=100, message_trace=MessageTraceConfig()
)


@pytest.fixture(scope="module", params=[OUR_SDK[0], *ALL_VERSIONS], ids=lambda side: side.direction)
def side(request: pytest.FixtureRequest) -> Side:
    """A pairing with servers of one version."""
    found: Side = request.param
    return found


@pytest.fixture(scope="module")
def servers(side: Side, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One running pair of servers for each version, whose broker creates the trace topic."""
    with serve(side, peer, tmp_path_factory.mktemp("console"), conf={"traceTopicEnable": "true"}) as running:
        yield running


@pytest.fixture
async def browser(servers: Cluster) -> AsyncIterator[Browser]:
    """A browser that is logged in, at a console that allows changes."""
    async with browsing(servers.namesrv.address, allow_changes=True) as made:
        await made.log_in()
        yield made


def broker_of(servers: Cluster) -> str:
    return str(servers.broker.conf["brokerName"])


async def send(servers: Cluster, topic: str, count: int) -> list[str]:
    """Send messages with keys to the only queue of a topic; return their unique ids."""
    async with Producer("console_senders", servers.namesrv.address, config=PRODUCER) as producer:
        await producer.create_topic(topic, 1)
        return [
            (await producer.send(Message(topic, b"body %d" % number, tags="t", keys=[f"{topic}-{number}"])))
            .message_id
            for number in range(count)
        ]  # fmt: skip


def consumer(
    servers: Cluster, group: str, topic: str, handle: Callable[[MessageExt], Awaitable[Later | None]]
) -> PushConsumer:
    """A member of a group that reads a topic from its beginning, not started."""
    made = PushConsumer(group, servers.namesrv.address, handle, config=CONSUMER)
    made.subscribe(topic)
    return made


async def test_brokers_topics_and_messages_are_shown(browser: Browser, servers: Cluster, side: Side) -> None:
    """An operator of RocketMQ's brokers would see no data, or wrong data."""
    topic, broker = servers.topic("shown"), broker_of(servers)
    ids = await send(servers, topic, 3)
    # In the first second, brokers of 4.9 fail to report their state.
    await browser.until("/", "V" + side.version.replace(".", "_"))
    await browser.console.sampler.sample()
    await browser.console.sampler.sample()
    cluster = await browser.text("/")
    assert cluster.count("<polyline") == 2
    assert re.search(r"\d+ %</td>", cluster), "the disk is not shown"
    detail = await browser.text("/broker", name=broker)
    assert "commitLogMaxOffset" in detail
    assert "<code>brokerName</code>" in detail
    replication = await browser.text("/replication")
    assert re.search(rf"<td>{broker}</td><td>0</td>", replication)
    assert re.search(r'class="number">[\d,]{3,}</td>', replication), "the end of the log is not shown"
    assert f">{topic}<" in await browser.text("/topics", search=topic.upper())
    described = await browser.until("/topic", 'class="number">3</td>', name=topic)
    assert "WRITE|READ" in described
    by_time = await browser.until("/messages", ids[2], topic=topic, by="time")
    assert all(one in by_time for one in ids)
    searches: list[dict[str, Any]] = [
        {"by": "key", "value": f"{topic}-1"},
        {"by": "unique", "value": ids[1]},
        {"by": "offset", "broker": broker, "queue": 0, "offset": 1},
    ]
    for search in searches:
        page = await browser.until("/messages", ids[1], topic=topic, **search)
    place = unescape(re.findall(r'href="(/message\?[^"]*)"', page)[0])
    message = await browser.text(place)
    assert "body 1" in message
    assert "No group consumes its topic" in message
    broker_id = re.findall(r"Broker's id</dt><dd><code>(\w+)</code>", message)[0]
    assert ids[1] in await browser.text("/messages", by="id", value=broker_id)

    assert "62 6f 64 79 20 31" in await browser.text(f"{place}&as=hex")


async def test_a_message_is_sent(browser: Browser, servers: Cluster) -> None:
    """The form would not send to RocketMQ's brokers."""
    topic = servers.topic("typed")
    await send(servers, topic, 1)
    fields = {"topic": topic, "tags": "red", "keys": "a b", "body": "typed by hand"}
    question = await browser.submit("/send", await browser.text("/send"), **fields)
    sent = await browser.submit("/send", question.text, step="confirmed", **fields)
    assert "The message was sent" in sent.text
    assert "typed by hand" in sent.text
    async with Producer("console_shop", servers.namesrv.address, config=PRODUCER) as producer:
        await producer.send(Message(topic, b"x"))
        await browser.until("/producers", "PYTHON", group="console_shop")


async def test_groups_are_shown_and_reset(browser: Browser, servers: Cluster) -> None:
    """An operator would not see that a group is behind, or could not move it."""
    topic, group = servers.topic("read"), servers.topic("console_group")
    await send(servers, topic, 3)
    handled: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        handled.append(message.body)

    async with consumer(servers, group, topic, handle):

        async def all_handled() -> bool | None:
            return len(handled) == 3 or None

        await eventually(all_handled, 60)
        offsets = '<td class="number">0</td><td class="number">3</td><td class="number">3</td>'
        page = await browser.until("/group", offsets, name=group)
        assert "0 messages left" in page
        assert "PYTHON" in page
        assert f'href="/topic?name={topic}"' in page
        assert f'href="/group?name={group}"' in await browser.text("/topic", name=topic)
    await browser.until("/group", "No member is online", name=group)
    assert f">{group}<" in await browser.text("/groups", search=group)
    wanted = {"group": group, "topic": topic, "to": "beginning"}
    preview = await browser.text("/reset", **wanted)
    assert re.search(r'class="number">3</td><td class="number">0</td>', preview)
    done = await browser.submit("/reset", preview, **wanted)
    assert "were reset" in done.text
    await browser.until("/group", "3 messages left", name=group)


async def test_dead_letters_are_sent_again(browser: Browser, servers: Cluster, side: Side) -> None:
    """Messages that a group gave up could not be seen, or not be handled after all."""
    topic, group = servers.topic("failed"), servers.topic("dead_group")
    await send(servers, topic, 3)
    handled: list[bytes] = []
    fails = True

    async def handle(message: MessageExt) -> Later | None:
        handled.append(message.body)
        return Later(delay_level=-1) if fails else None

    async with consumer(servers, group, topic, handle):
        await browser.until("/dead-letters", f'{group}</a></td><td class="number">3<', page=1)
        fails = False
        handled.clear()
        async with browsing(servers.namesrv.address) as reader:  # read-only: it must change no permission
            await reader.log_in()
            page = await reader.text("/dead-letters", group=group)
            assert ("cannot be read" in page) is (side.version == DEFAULT_VERSION)
        page = await browser.text("/dead-letters", group=group)
        assert all(f"{topic}-{number}" in page for number in range(3))
        again = unescape(re.findall(r'href="(/resend\?[^"]*)"', page)[0])
        question = await browser.text(again)
        fields = dict(
            re.findall(r'type="hidden" name="(group|broker|queue|offset)" value="([^"]*)"', question)
        )
        done = await browser.submit("/resend", question, **fields)
        assert "sent to the group again" in done.text

        async def has_handled(count: int) -> None:
            async def look() -> bool | None:
                return len(handled) >= count or None

            await eventually(look, 60)

        await has_handled(1)
        preview = await browser.text("/resend-all", group=group)
        assert "This sends 3 messages" in preview
        await browser.submit("/resend-all", preview, group=group, step="start")
        await browser.until("/resend-all", "3 dead letters were sent again", group=group)
        await has_handled(4)
    assert len(handled) == 4


async def test_a_message_is_traced(browser: Browser, servers: Cluster) -> None:
    """An operator could not tell who sent a message, and which groups handled it."""
    topic, group = servers.topic("traced"), servers.topic("traced_group")
    (sent,) = await send(servers, topic, 1)
    calls: list[bytes] = []

    async def handle(message: MessageExt) -> Later | None:
        calls.append(message.body)
        return Later(delay_level=1) if len(calls) == 1 else None

    async with consumer(servers, group, topic, handle):

        async def handled_twice() -> bool | None:
            return len(calls) == 2 or None

        await eventually(handled_twice, 60)
    page = await browser.until("/trace", ">consumed<", key=sent)
    page = await browser.until("/trace", ">failed<", key=f"{topic}-0")
    assert "console_senders" in page
    assert page.count(f'href="/group?name={group}"') == 2


async def test_java_clients_are_traced(browser: Browser, servers: Cluster) -> None:
    """The console could not show traces of Java applications."""
    topic = servers.topic("theirs")

    def java(group: str, step: dict[str, Any]) -> dict[str, Any]:
        home = servers.run / f"trace-{group}"
        (result,) = servers.peer.drive("Trace", servers.namesrv.address, group, home=home, steps=[step])
        assert "error" not in result, result
        return result

    step = {"do": "send", "topic": topic, "body": "6869", "tags": "t", "keys": "k3"}
    sent = await asyncio.to_thread(java, "sender", step)
    await asyncio.to_thread(java, "consumer", {"do": "consume", "topic": topic})
    page = await browser.until("/trace", ">consumed<", key=sent["msgId"])
    assert f'href="/group?name=consumer_{topic}"' in page
    assert "<td>normal</td>" in page


async def test_a_broker_is_hidden_and_restored(browser: Browser, servers: Cluster, side: Side) -> None:
    """A broker could not be taken out of service, or an operator not learn how to take it back."""
    topic, broker = servers.topic("hidden"), broker_of(servers)
    await send(servers, topic, 1)
    hide, restore = {"name": broker, "to": "hide"}, {"name": broker, "to": "restore"}
    preview = await browser.text("/writes", **hide)
    assert "No other broker offers" in preview
    assert topic in preview
    hidden = await browser.submit("/writes", preview, **hide)
    assert "hidden from producers" in hidden.text
    back = await browser.submit("/writes", await browser.text("/writes", **restore), **restore)
    if side.version == DEFAULT_VERSION:  # its name servers do not respond to this request
        assert back.status_code == 502
        assert "restart the broker" in await browser.text("/writes", **restore)
        await send(servers, servers.topic("new"), 1)  # registers the broker's topics again
    await browser.until("/broker", "use it, for", name=broker)
