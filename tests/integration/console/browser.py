"""Browsers' requests to a console, without a socket in between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from rocketpy.config import ClientConfig
from rocketpy_cli.console.app import Console
from rocketpy_cli.console.settings import ConsoleSettings
from tests.waiting import LIMIT_S

TOKEN: Final = "a token for these tests"
URL: Final = "http://127.0.0.1:8088"


class Browser(httpx.AsyncClient):
    """A browser that follows redirects and keeps cookies."""

    def __init__(self, console: Console) -> None:
        transport = httpx.ASGITransport(console.asgi)
        super().__init__(transport=transport, base_url=URL, follow_redirects=True)
        self.console = console

    async def log_in(self) -> None:
        """Open the link that the command prints."""
        assert (await self.get("/", params={"token": TOKEN})).status_code == 200

    async def text(self, path: str, **parameters: Any) -> str:
        """Get a page, which must exist; return its text."""
        response = await self.get(path, params=parameters or None)
        assert response.status_code == 200, response.text
        return response.text

    async def until(self, path: str, *texts: str, **parameters: Any) -> str:
        """Wait for a page to have these texts: brokers index, count and register with a delay."""
        page = ""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not page or any(text not in page for text in texts):
                    page = await self.text(path, **parameters)
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{path} {parameters} does not show {texts}:\n{page}") from None
        return page

    async def submit(self, path: str, page: str, **fields: Any) -> httpx.Response:
        """Send a form with the CSRF token of a page."""
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found, "the page has no form that changes something"
        return await self.post(path, data={"csrf": found[1], **fields})


@asynccontextmanager
async def browsing(namesrv: str, **settings: Any) -> AsyncIterator[Browser]:
    """A browser, not logged in, and a console of its own."""
    client = ClientConfig(namesrv=namesrv)
    made = ConsoleSettings(client=client, cluster="cluster of tests", token=TOKEN, **settings)
    async with Console(made) as console, Browser(console) as browser:
        yield browser
