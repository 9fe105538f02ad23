"""Work of operators: view a broker, hide it, resend dead letters, follow a message."""

from __future__ import annotations

import asyncio
import re
from html import unescape

import pytest

from rocketpy import (
    AdminClient,
    ClientConfig,
    Later,
    Message,
    MessageExt,
    MessageTraceConfig,
    Producer,
    ProducerConfig,
    SendResult,
)
from rocketpy.admin import Permission
from rocketpy.admin.dead_letters import DeadLetterQueues
from rocketpy_broker.embedded import EmbeddedCluster
from rocketpy_cli.console.resends import Resends
from tests.integration.client.admin.admin_place import missing_broker
from tests.integration.console.browser import Browser, browsing
from tests.integration.consumer.test_dead_letters import dead
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import until

TRACED = ProducerConfig(message_trace=MessageTraceConfig())


async def test_a_broker_shows_its_state_and_settings(browser: Browser) -> None:
    """An operator could not see how a broker is set up."""
    link = unescape(re.findall(r'href="(/broker\?[^"]*)"', await browser.text("/"))[0])
    page = await browser.text(link)
    assert "commitLogMaxOffset" in page
    assert "fileReservedTime" in page
    assert "use it, for 1 topics" in page
    assert (await browser.get("/broker", params={"name": "nobody"})).status_code == 404
    assert (await browser.get("/broker", params={"name": "broker-a", "id": "7"})).status_code == 404


async def test_producers_of_a_group_are_listed(browser: Browser, cluster: EmbeddedCluster) -> None:
    """An operator could not tell which applications still send."""
    assert "No producer" in await browser.text("/producers", group="nobody")
    client = ClientConfig(namesrv=cluster.namesrv_address, heartbeat_ms=100)
    async with Producer("shop", client=client) as producer:
        await producer.send(Message("T", b"one"))
        page = await browser.until("/producers", "PYTHON", group="shop")
    assert "<td>broker-a</td>" in page


async def test_a_slave_has_no_write_permission_to_change() -> None:
    """An operator would hide the master when they mean a slave."""
    async with (
        EmbeddedCluster(slaves=1) as cluster,
        browsing(cluster.namesrv_address, allow_changes=True) as browser,
    ):
        await browser.log_in()
        assert "/writes?" not in await browser.text("/broker", name="broker-a", id=1)
        assert "/writes?" in await browser.text("/broker", name="broker-a", id=0)


async def test_a_broker_is_hidden_and_restored_after_a_preview() -> None:
    """A misclick would hide a broker from producers, even the only broker of a topic."""
    async with (
        EmbeddedCluster(brokers=2, settings=SETTINGS) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        browsing(cluster.namesrv_address, allow_changes=True) as browser,
    ):
        await admin.topics.create("Both", 1)
        await admin.create_topic("Alone", 1, key="broker-a")

        async def offered(topic: str) -> set[str]:
            return {queue.broker_name for queue in await admin.fetch_publish_message_queues(topic)}

        await browser.log_in()
        wanted = {"name": "broker-a", "to": "hide"}
        preview = await browser.text("/writes", **wanted)
        assert "cluster of tests" in preview
        assert "No other broker offers one topic of this broker. Sends to them will fail: Alone" in preview
        assert await offered("Both") == {"broker-a", "broker-b"}
        hidden = await browser.submit("/writes", preview, **wanted)
        assert "The name servers hide the broker" in hidden.text
        assert "hidden from producers" in hidden.text
        assert await offered("Both") == {"broker-b"}
        other = await browser.text("/writes", name="broker-b", to="hide")
        assert "No other broker offers one topic of this broker. Sends to them will fail: Both" in other
        back = {"name": "broker-a", "to": "restore"}
        restored = await browser.submit("/writes", await browser.text("/writes", **back), **back)
        assert "Producers use the broker again" in restored.text
        assert await offered("Both") == {"broker-a", "broker-b"}
        for wrong, status in (({"name": "nobody"}, 404), ({"to": "stop"}, 400), ({"to": ""}, 400)):
            response = await browser.submit("/writes", preview, **{**wanted, **wrong})
            assert response.status_code == status


async def test_a_broker_is_shown_while_another_is_down() -> None:
    """An operator could not view the remaining brokers, or not take them back into service."""
    async with (
        EmbeddedCluster(settings=SETTINGS) as cluster,
        browsing(cluster.namesrv_address, allow_changes=True) as browser,
    ):
        await browser.log_in()
        async with missing_broker(cluster):
            assert "unknown: " in await browser.text("/broker", name="broker-a")
            restore = {"name": "broker-a", "to": "restore"}
            preview = await browser.text("/writes", **restore)
            assert "It is unknown which topics only this broker offers" in preview
            done = await browser.submit("/writes", preview, **restore)
            assert "Producers use the broker again" in done.text


async def test_all_dead_letters_of_a_group_are_sent_again() -> None:
    """After an outage thousands of messages would have to be resent one by one, or a misclick resend all."""
    async with EmbeddedCluster(settings=SETTINGS) as cluster:
        await dead(cluster, 7)
        async with browsing(cluster.namesrv_address, allow_changes=True) as browser:
            await browser.log_in()
            assert re.search(r'group=g">g</a></td><td class="number">7<', await browser.text("/dead-letters"))
            letters = await browser.text("/dead-letters", group="g")
            assert "/resend-all?group=g" in letters
            assert letters.count("<td>the handler returned Later</td>") == 7
            question = await browser.text("/resend-all", group="g")
            assert "This sends 7 messages to the group again" in question
            assert "cluster of tests" in question
            seen = Seen()
            async with consuming(cluster, seen):
                begun = await browser.submit("/resend-all", question, group="g", step="start")
                assert begun.status_code == 200
                await seen.until(7)
                await browser.until("/resend-all", "7 dead letters were sent again", group="g")
            wrong = await browser.submit("/resend-all", question, group="g", step="x")
            assert wrong.status_code == 400
        assert len(seen.messages) == 7


async def test_a_resend_is_stopped_and_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resend of the wrong group could not be ended, or would begin again with the first message."""
    permits, stops = asyncio.Semaphore(3), asyncio.Event()
    resend, stop = DeadLetterQueues.resend, Resends.stop

    async def resend_when_permitted(queues: DeadLetterQueues, message: MessageExt) -> SendResult:
        await permits.acquire()
        return await resend(queues, message)

    async def stop_visibly(resends: Resends, group: str) -> None:
        stops.set()
        await stop(resends, group)

    monkeypatch.setattr(DeadLetterQueues, "resend", resend_when_permitted)
    monkeypatch.setattr(Resends, "stop", stop_visibly)
    async with EmbeddedCluster(settings=SETTINGS) as cluster:
        await dead(cluster, 9)
        async with browsing(cluster.namesrv_address, allow_changes=True) as browser:
            await browser.log_in()
            question = await browser.text("/resend-all", group="g")
            seen = Seen()
            async with consuming(cluster, seen):
                begun = await browser.submit("/resend-all", question, group="g", step="start")
                assert "Sending: " in begun.text
                again = await browser.submit("/resend-all", question, group="g", step="start")
                assert again.status_code == 400
                assert "are being sent" in again.text
                await seen.until(3)
                stopping = asyncio.create_task(
                    browser.submit("/resend-all", question, group="g", step="stop")
                )
                await stops.wait()
                permits.release()  # the message that is being sent
                assert "Stopped after 4 of 9" in (await stopping).text
                await seen.until(4)
                for _ in range(5):
                    permits.release()
                await browser.submit("/resend-all", question, group="g", step="resume")
                await seen.until(9)
            assert set(seen.bodies.values()) == {1}


async def test_a_read_only_console_changes_no_permission(cluster: EmbeddedCluster) -> None:
    """Viewing the dead letters of an old broker would change the settings of a topic."""
    topic = "%DLQ%g"
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.topics.create(topic, 1, perm=Permission.WRITE)
        async with Producer("p", cluster.namesrv_address) as producer:
            await producer.send(Message(topic, b"one"))
        async with browsing(cluster.namesrv_address) as reader:
            await reader.log_in()
            assert "cannot be read" in await reader.text("/dead-letters", group="g")
            assert 'class="number">1<' in await reader.text("/dead-letters")
            question = await reader.text("/resend-all", group="g")
            assert "This sends 1 messages" in question
            assert 'method="post"' not in question
        described = await admin.topics.describe(topic)
        assert {settings.perm for settings in described.brokers.values()} == {Permission.WRITE}


async def test_a_trace_shows_sender_and_consumers() -> None:
    """An operator could not tell where a message was lost."""
    async with EmbeddedCluster(settings=SETTINGS) as cluster, browsing(cluster.namesrv_address) as browser:
        await browser.log_in()
        missing = await browser.text("/trace", key="k1")
        assert "There is no topic RMQ_SYS_TRACE_TOPIC" in missing
        calls: list[str] = []

        def handle(_: object) -> Later | None:
            calls.append("call")
            return Later() if len(calls) == 1 else None

        async with Producer("shop", cluster.namesrv_address, config=TRACED) as producer:
            await producer.create_topic("T", 1)
            sent = await producer.send(Message("T", b"hello", keys=["k1"], tags="<b>"))
            await producer.send(Message("T", b"other", keys=["k2"]))
        async with consuming(cluster, Seen(handle), group="billing", message_trace=MessageTraceConfig()):
            await until(lambda: len(calls) == 3)
        page = await browser.until("/trace", "consumed<", "failed<", key="k1")
        assert sent.message_id in page
        assert "<td>shop</td>" in page
        assert ">stored<" in page
        assert page.count('href="/group?name=billing"') == 2
        assert "&lt;b&gt;" in page
        assert page.count("<h2>") == 1
        assert await browser.text("/trace", key=sent.message_id)
        assert "No client has reported this message" in await browser.text("/trace", key="k3")
        message = await browser.text("/message", id=sent.offset_message_id)
        assert f'href="/trace?key={sent.message_id}"' in message
