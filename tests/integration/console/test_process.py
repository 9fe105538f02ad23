"""``rocketpy console`` as a process: its first line, pages over a real socket, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import Process

import httpx
import pytest

from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import finish, run, start
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow


async def first_line(process: Process) -> str:
    """The line that a command prints when it has started."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode()


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [(signal.SIGINT, 130, "rocketpy: interrupted\n"), (signal.SIGTERM, 143, "")],
)
async def test_it_prints_its_link_and_ends(
    cluster: EmbeddedCluster, end: signal.Signals, status: int, says: str
) -> None:
    """A user would not find the console, or see a traceback after Ctrl-C; open pages would hold it."""
    process = await start("console", "--port", "0", "-n", cluster.namesrv_address)
    words = (await first_line(process)).split()
    assert words[:4] == ["The", "console", "is", "at"]
    async with httpx.AsyncClient(follow_redirects=True) as browser:  # keeps its connection open
        page = await browser.get(words[4])
        assert page.status_code == 200
        assert "broker-a" in page.text
        refused = await browser.get(words[4].partition("?")[0], headers={"Cookie": ""})
        assert refused.status_code == 401
        process.send_signal(end)
        done = await finish(process)
    assert done == (status, "", says)


async def test_programs_read_its_link(cluster: EmbeddedCluster) -> None:
    """A script would have to take the link out of a sentence."""
    token = "a token of this script"
    process = await start(
        "console", "--port", "0", "--json", "-n", cluster.namesrv_address, ROCKETPY_CONSOLE_TOKEN=token
    )
    link = json.loads(await first_line(process))["url"]
    assert link.endswith(f"/?token={token}")
    process.send_signal(signal.SIGINT)
    assert (await finish(process)).err == "rocketpy: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--host", "0.0.0.0"), "--allow-remote"),  # noqa: S104 - it is refused
        (("--port", "{taken}"), "Choose another --port"),
    ],
)
async def test_a_failed_start_names_the_reason(
    cluster: EmbeddedCluster, arguments: tuple[str, str], says: str
) -> None:
    """A user would see a traceback, or a console that others can reach."""
    name, value = arguments
    taken = cluster.namesrv_address.rpartition(":")[2]
    done = await run("console", name, value.format(taken=taken), "-n", cluster.namesrv_address)
    assert done.status == 1
    assert done.out == ""
    assert says in done.err
    assert "Traceback" not in done.err


async def test_an_offline_cluster_is_reported() -> None:
    """A user would wait at an empty page."""
    done = await run("console", "--port", "0", "-n", "127.0.0.1:1")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("rocketpy: ")
    assert "Traceback" not in done.err
