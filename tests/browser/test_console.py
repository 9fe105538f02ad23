"""The console's pages in Chromium: `make console-test`. SCREENSHOTS names a folder for pictures of them."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from rocketpy import AdminClient, ConsumeFrom, Message, MessageExt, Producer, PushConfig, PushConsumer
from rocketpy.cli.console.server import serve
from rocketpy.cli.console.settings import ConsoleSettings
from rocketpy.config import ClientConfig
from rocketpy_broker.embedded import EmbeddedCluster

pytestmark = pytest.mark.browser

PAGES = {
    "cluster": "/",
    "topics": "/topics",
    "topic": "/topic?name=Orders",
    "groups": "/groups",
    "group": "/group?name=billing",
    "messages": "/messages?topic=Orders&by=time",
    "message": "/message?id={message}",
    "dead-letters": "/dead-letters",
    "replication": "/replication",
    "send": "/send?topic=Orders",
    "reset": "/reset?group=billing&topic=Orders&to=beginning",
}
BODY = b'{"order": 42, "text": "<script>document.title = 1</script>"}'
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED = "document.activeElement.textContent.trim()"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
async def test_each_page_fits_and_stays_within_its_policy(width: int, scheme: str) -> None:
    """A page would scroll sideways, lack a way for the keyboard, run a script, or fetch from elsewhere."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "Chromium is missing: install Debian's package chromium"
    links: asyncio.Queue[str] = asyncio.Queue()
    troubles: list[str] = []
    requested: set[str] = set()

    async def handle(_: MessageExt) -> None:
        """A group has members and lag."""

    async with (
        EmbeddedCluster(slaves=1) as cluster,
        AdminClient(cluster.namesrv_address) as admin,
        Producer("shop", cluster.namesrv_address) as producer,
        async_playwright() as playwright,
    ):
        await admin.topics.create("Orders", 8)
        for number in range(100):
            sent = await producer.send(Message("Orders", BODY, keys=[f"order-{number}"], tags="new"))
        consumer = PushConsumer(
            "billing",
            cluster.namesrv_address,
            handle,
            config=PushConfig(consume_from=ConsumeFrom.FIRST_OFFSET),
        )
        consumer.subscribe("Orders")
        settings = ConsoleSettings(
            client=ClientConfig(namesrv=cluster.namesrv_address),
            cluster=f"{cluster.namesrv_address} (profile shop)",
            token="a token of this test",
            port=0,
            allow_changes=True,
            interval_s=0.5,
        )
        serving = asyncio.create_task(serve(settings, links.put_nowait))
        link = await links.get()
        base = link.partition("/?")[0]
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = await browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = await context.new_page()
        page.on("console", lambda entry: troubles.append(f"{page.url}: {entry.type}: {entry.text}"))
        page.on("pageerror", lambda error: troubles.append(f"{page.url}: {error}"))
        page.on("request", lambda one: requested.add(one.url))
        async with consumer:
            await page.goto(link)
            for name, path in PAGES.items():
                answer = await page.goto(base + path.format(message=sent.offset_message_id))
                assert answer is not None
                assert answer.status == 200, name
                assert await page.evaluate(WIDER) <= 0, f"{name} is wider than {width} px"
                await page.keyboard.press("Tab")
                assert "content" in (await page.evaluate(FOCUSED)).lower(), f"{name} has no skip link"
                await page.evaluate("document.activeElement.blur()")
                if folder := os.environ.get("SCREENSHOTS"):
                    await page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png")
        assert await page.title() != "1"
        await browser.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert not troubles
    assert {url for url in requested if not url.startswith(base)} == set()
