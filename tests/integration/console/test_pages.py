"""Each page of the console, with a real cluster."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from rocketpy import AdminClient, Message, MessageQueue, Producer
from rocketpy.admin import ResetTo
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.console.browser import Browser, browsing
from tests.integration.sdk_groups import Seen, consuming
from tests.waiting import until

SCRIPT = "<script>alert(1)</script>"


async def test_the_cluster_page_shows_brokers_and_rates(browser: Browser, producer: Producer) -> None:
    """An operator could not see whether brokers are well."""
    await producer.send(Message("T", b"one"))
    await browser.console.sampler.sample()
    await browser.console.sampler.sample()
    page = await browser.text("/")
    assert "broker-a" in page
    assert "V4_6_0" in page
    assert page.count("<polyline") == 2
    assert "cluster of tests" in page


async def test_topics_are_searched_and_paged(browser: Browser, cluster: EmbeddedCluster) -> None:
    """In a large cluster a topic could not be found."""
    async with AdminClient(cluster.namesrv_address) as admin:
        for number in range(60):
            await admin.topics.create(f"Many-{number:02}", 1)
    first, second = await browser.text("/topics"), await browser.text("/topics", page=2)
    assert "Many-00" in first
    assert "Many-59" not in first
    assert "Many-59" in second
    found = await browser.text("/topics", search="many-5")
    assert re.findall(r">(Many-\d\d)<", found) == [f"Many-5{digit}" for digit in range(10)]
    assert "TBW102" not in found
    assert "TBW102" in await browser.text("/topics", search="TBW102", system="1")


async def test_a_topic_leads_to_its_groups_and_messages(
    browser: Browser, cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Queues, offsets and groups of a topic would not be seen."""
    for number in range(8):
        await producer.send(Message("T", b"%d" % number))
    seen = Seen()
    async with consuming(cluster, seen, group="readers"):
        await seen.until(8)
        page = await browser.text("/topic", name="T")
        assert 'href="/group?name=readers"' in page
        assert page.count("by=offset") == 8
        first = unescape(re.findall(r'href="(/messages\?[^"]*by=offset[^"]*)"', page)[0])
        assert "/message?topic=T" in await browser.text(first)


async def test_a_group_shows_lag_and_members(
    browser: Browser, cluster: EmbeddedCluster, producer: Producer
) -> None:
    """An operator could not see that a group is behind, or who is in it."""
    seen = Seen()
    async with consuming(cluster, seen, group="readers"):
        await producer.send(Message("T", b"one"))
        await seen.until(1)
        await browser.console.sampler.sample()
        await browser.console.sampler.sample()
        page = await browser.text("/group", name="readers")
        assert "PYTHON" in page
        assert "<polyline" in page
        assert ">readers<" in await browser.text("/groups")
    missing = await browser.get("/group", params={"name": "unknown-group"})
    assert (missing.status_code, "there is no group unknown-group" in missing.text) == (404, True)


async def test_a_group_shows_how_its_members_differ(browser: Browser, cluster: EmbeddedCluster) -> None:
    """An operator looked at two members that lose each other's messages, and saw nothing wrong."""
    async with (
        consuming(cluster, Seen(), "*", group="readers", name="one"),
        consuming(cluster, Seen(), "a", group="readers", name="two"),
    ):
        page = unescape(await browser.text("/group", name="readers"))
        assert "members of group readers have different subscriptions" in page
        assert "127.0.0.1@two has T 'a'" in page
        assert page.count('role="alert"') == 1


async def test_messages_are_found_and_never_html(browser: Browser, producer: Producer) -> None:
    """A script in a body would run in the operator's browser, or the message not be found."""
    message = Message("T", SCRIPT.encode(), keys=["k1"], tags=SCRIPT, properties={"<b>": SCRIPT})
    sent = await producer.send(message)
    queue = {"broker": sent.queue.broker_name, "queue": sent.queue.queue_id}
    await browser.until(
        "/messages", f"<code>{sent.message_id}<", topic="T", by="unique", value=sent.message_id
    )
    searches: list[dict[str, Any]] = [
        {"topic": "T", "by": "key", "value": "k1"},
        {"topic": "T", "by": "unique", "value": sent.message_id},
        {"by": "id", "value": sent.offset_message_id},
        {"topic": "T", "by": "time", "begin": "2020-01-01T00:00", "end": "2099-01-01T00:00:00"},
        {"topic": "T", "by": "offset", "offset": sent.queue_offset, **queue},
    ]
    for search in searches:
        page = await browser.text("/messages", **search)
        assert sent.message_id in page, search
        assert "<script>alert" not in page
    place = {"topic": "T", "offset": sent.queue_offset, **queue}
    page = await browser.text("/message", **place)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;") >= 3
    assert "3c 73 63 72 69 70 74" in await browser.text("/message", **place, **{"as": "hex"})


async def test_a_binary_body_is_shown_in_hex(browser: Browser, producer: Producer) -> None:
    """A body that is not text could break the page."""
    sent = await producer.send(Message("T", b"\x00\xff" * 50_000))
    page = await browser.text("/message", id=sent.offset_message_id)
    assert "00 ff 00 ff" in page
    assert "first 64 KiB" in page


async def test_wrong_searches_are_explained(browser: Browser) -> None:
    """A typing error would end in a page without a reason."""
    assert "has no topic" in await browser.text("/messages", by="key", value="k")
    assert "whole number" in await browser.text("/messages", by="offset", topic="T", broker="b", queue="x")
    assert (await browser.get("/topic", params={"name": "missing"})).status_code == 404
    assert (await browser.get("/topic")).status_code == 400
    assert (await browser.get("/topics", params={"page": "x"})).status_code == 400
    assert (await browser.get("/missing")).status_code == 404


async def test_a_message_is_sent_once_it_is_confirmed(browser: Browser, cluster: EmbeddedCluster) -> None:
    """A misclick would send a message, or the message would not arrive as typed."""
    fields = {"topic": "T", "tags": "red", "keys": "a b", "body": "first\r\nsecond <i>"}
    question = await browser.submit("/send", await browser.text("/send"), **fields)
    assert "cluster of tests" in question.text
    async with AdminClient(cluster.namesrv_address) as admin:
        assert [message async for message in admin.messages.by_time("T")] == []
        sent = await browser.submit("/send", question.text, step="confirmed", **fields)
        assert sent.status_code == 200
        assert "The message was sent" in sent.text
        (message,) = [message async for message in admin.messages.by_time("T")]
    assert (message.body, message.keys, message.tags) == (b"first\nsecond <i>", ("a", "b"), "red")


async def test_a_message_is_sent_with_a_delay(browser: Browser, cluster: EmbeddedCluster) -> None:
    """The delivery that was confirmed would not be the one of the message."""
    form = await browser.text("/send")
    for delivery, words in (
        ("3", "&#39;3&#39; is not a time"),
        ("soon", "&#39;soon&#39; is not a time"),
        ("90x", "&#39;90x&#39; is not a delay"),
        ("2100-06-01T09:00", "has no time zone"),
    ):
        refused = await browser.submit("/send", form, topic="T", body="x", delivery=delivery)
        assert refused.status_code == 400
        assert words in refused.text
    fields = {"topic": "T", "body": "x", "delivery": "2000-06-01T09:00+02:00"}
    question = await browser.submit("/send", form, **fields)
    assert "2000-06-01T09:00+02:00" in question.text
    delayed = await browser.submit("/send", form, topic="T", body="x", delivery="1s")
    sent = await browser.submit("/send", delayed.text, step="confirmed", topic="T", body="x", delivery="1s")
    assert "The message was sent" in sent.text
    store = cluster.brokers[0].store
    assert store.max_offset_in_queue("SCHEDULE_TOPIC_XXXX", 0) or sent.text.count("TIMER_DELAY_MS")


async def test_offsets_are_reset_after_a_preview(
    browser: Browser, cluster: EmbeddedCluster, producer: Producer
) -> None:
    """A group could be moved without anyone seeing where to."""
    for number in range(8):
        await producer.send(Message("T", b"%d" % number))
    seen = Seen()
    async with consuming(cluster, seen, group="readers"):
        await seen.until(8)
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.groups.reset("readers", "T", ResetTo.end())
        wanted = {"group": "readers", "topic": "T", "to": "beginning"}
        preview = await browser.text("/reset", **wanted)
        assert "cluster of tests" in preview
        assert (await admin.groups.lag("readers", "T")).total == 0
        done = await browser.submit("/reset", preview, **wanted)
        assert "were reset" in done.text
        assert (await admin.groups.lag("readers", "T")).total == 8
    assert "time such as" in (await browser.get("/reset", params=wanted | {"to": "time", "value": "x"})).text


async def test_a_dead_letter_is_sent_again(
    browser: Browser, cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Messages that a group gave up could not be handled after all."""
    assert "No group has dead letters" in await browser.text("/dead-letters")
    async with AdminClient(cluster.namesrv_address) as admin:
        await admin.groups.create("readers", max_retries=0)

        def fails(_: object) -> None:
            raise ValueError("not today")

        async with consuming(cluster, Seen(fails), group="readers"):
            await producer.send(Message("T", b"one", keys=["k"]))
            found: list[object] = []
            while not found:
                found = list((await admin.dead_letters.fetch("readers")).messages)
        assert "/dead-letters?group=readers" in await browser.text("/dead-letters")
        page = await browser.text("/dead-letters", group="readers")
        again = unescape(re.findall(r'href="(/resend\?[^"]*)"', page)[0])
        question = await browser.text(again)
        assert "cluster of tests" in question
        fields = dict(
            re.findall(r'type="hidden" name="(group|broker|queue|offset)" value="([^"]*)"', question)
        )
        seen = Seen()
        async with consuming(cluster, seen, group="readers"):
            done = await browser.submit("/resend", question, **fields)
            assert "sent to the group again" in done.text
            await until(lambda: seen.bodies[b"one"])


async def test_replication_shows_slaves() -> None:
    """A slave that is behind would not be noticed."""
    async with EmbeddedCluster(slaves=1) as cluster, browsing(cluster.namesrv_address) as browser:
        await browser.log_in()
        page = await browser.text("/replication")
        assert "ASYNC_MASTER" in page
        assert "Slaves of broker-a" in page


async def test_a_queue_is_read_in_pages(browser: Browser, producer: Producer) -> None:
    """Only the first messages of a queue could be seen."""
    queue: MessageQueue | None = None
    for number in range(60):
        sent = await producer.send(Message("T", b"%d" % number), queue=queue)
        queue = sent.queue
    assert queue is not None
    page = await browser.text(
        "/messages", topic="T", by="offset", broker=queue.broker_name, queue=queue.queue_id
    )
    after = unescape(re.findall(r'rel="next" href="([^"]*)"', page)[0])
    assert (await browser.text(after)).count('href="/message?') == 10
