"""The console's pages in Chromium: `make console-test`. SCREENSHOTS names a folder for pictures of them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Page, async_playwright

from rocketpy import Message, Producer
from rocketpy.config import ClientConfig
from rocketpy_cli.console.server import serve
from rocketpy_cli.console.settings import ConsoleSettings
from tests.browser.shop import Shop, shop
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.browser

PAGES: Final = {
    "topics": "/topics",
    "topic": "/topic?name=Orders",
    "groups": "/groups",
    "producers": "/producers?group=shop",
    "messages": "/messages?topic=Orders&by=time",
    "message": "/message?id={message}",
    "trace": "/trace?key={key}",
    "dead-letters": "/dead-letters",
    "dead-letters-of-group": "/dead-letters?group=shipping",
    "resend-all": "/resend-all?group=shipping",
    "replication": "/replication",
    "send": "/send?topic=Orders",
    "reset": "/reset?group=billing&topic=Orders&to=beginning",
    "broker": "/broker?name=broker-a",
    "users": "/users",
    "writes": "/writes?name=broker-a&to=hide",
    "group": "/group?name=billing",
    "cluster": "/",
}
BODY: Final = b'{"order": 42, "text": "<script>document.title = 1</script>"}'
WIDER: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED: Final = "document.activeElement.textContent.trim()"
SHOWN: Final = """[...document.querySelectorAll("form.search [name]")]
    .filter((one) => one.offsetParent !== null).map((one) => one.name).join(" ")"""
TOPS: Final = """[...document.querySelectorAll("form.search :is(input, select, button)")]
    .filter((one) => one.offsetParent !== null).map((one) => one.getBoundingClientRect().top)"""
SAMPLES, INTERVAL_S = (30, 1.0) if "SCREENSHOTS" in os.environ else (2, 0.5)
"""Points of a chart, and the time between two of them; pictures have more."""


@asynccontextmanager
async def browsing(
    running: Shop, width: int, scheme: str, troubles: list[str], requested: set[str]
) -> AsyncIterator[tuple[Page, str]]:
    """A page that is logged in at a console of the shop, and the address of the console.

    troubles, requested: receive the errors that Chromium reports, and the addresses that it requests.
    """
    chromium = shutil.which("chromium")
    assert chromium is not None, "Chromium is missing: install Debian's package chromium"
    links: asyncio.Queue[str] = asyncio.Queue()
    namesrv = running.cluster.namesrv_address
    settings = ConsoleSettings(
        client=ClientConfig(namesrv=namesrv),
        cluster=f"{namesrv} (profile shop)",
        token="a token of this test",
        port=0,
        allow_changes=True,
        interval_s=INTERVAL_S,
    )
    serving = asyncio.create_task(serve(settings, links.put_nowait))
    link = await links.get()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = await browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = await context.new_page()
        page.on("console", lambda entry: troubles.append(f"{page.url}: {entry.type}: {entry.text}"))
        page.on("pageerror", lambda error: troubles.append(f"{page.url}: {error}"))
        page.on("request", lambda one: requested.add(one.url))
        await page.goto(link)
        yield page, link.partition("/?")[0]
        await browser.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def charted(page: Page, place: str) -> None:
    """Wait until the lines in the charts of a page have several points."""
    points = 0
    async with asyncio.timeout(LIMIT_S):
        while points < SAMPLES:
            await page.goto(place)
            lines = await page.eval_on_selector_all(
                "polyline", "lines => lines.map((line) => line.points.numberOfItems)"
            )
            points = min(lines, default=0)
            await asyncio.sleep(INTERVAL_S / 2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
async def test_each_page_fits_and_stays_within_its_policy(width: int, scheme: str) -> None:
    """A page would scroll sideways, not work by keyboard, run a script, or load files from other hosts."""
    troubles: list[str] = []
    requested: set[str] = set()
    async with shop() as running:
        async with Producer("guests", running.cluster.namesrv_address) as producer:
            attack = await producer.send(Message("Orders", BODY, keys=["order-42"], tags="new"))
        values = {"message": attack.offset_message_id, "key": running.traced.message_id}
        async with browsing(running, width, scheme, troubles, requested) as (page, base):
            for name, path in PAGES.items():
                if name in {"group", "cluster"}:
                    await charted(page, base + path)
                response = await page.goto(base + path.format(**values))
                assert response is not None
                assert response.status == 200, name
                assert await page.evaluate(WIDER) <= 0, f"{name} is wider than {width} px"
                await page.keyboard.press("Tab")
                assert "content" in (await page.evaluate(FOCUSED)).lower(), f"{name} has no skip link"
                await page.evaluate("document.activeElement.blur()")
                if folder := os.environ.get("SCREENSHOTS"):
                    await page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png")
            assert await page.title() != "1"
    assert not troubles
    assert {url for url in requested if not url.startswith(base)} == set()


async def test_forms_and_live_parts() -> None:
    """A form would show irrelevant fields, or a page keep showing outdated data."""
    troubles: list[str] = []
    async with shop() as running, browsing(running, 1600, "light", troubles, set()) as (page, base):
        await page.goto(f"{base}/messages")
        for kind, fields in {
            "key": "by topic value",
            "unique": "by topic value",
            "id": "by value",
            "time": "by topic begin end",
            "offset": "by topic broker queue offset",
        }.items():
            await page.select_option("select", kind)
            assert await page.evaluate(SHOWN) == fields
            assert len({round(top) for top in await page.evaluate(TOPS)}) == 1, f"{kind}: not in one line"
        await page.goto(f"{base}/reset?group=billing&topic=Orders")
        for kind, fields in {"end": "to", "time": "to value"}.items():
            await page.select_option("select", kind)
            assert await page.evaluate(SHOWN) == fields
        await charted(page, base)
        first = await page.locator(".times span").nth(1).inner_text()
        await page.wait_for_function(
            "first => document.querySelectorAll('.times span')[1].innerText !== first", arg=first
        )
        await page.uncheck("#live")
    assert not troubles
