"""What commands print when names, ids and bodies of other programs contain control characters."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from subprocess import Popen

import pytest

from rocketpy import Message, Producer
from rocketpy.config import ClientConfig
from rocketpy.consumer import PushConsumer
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.access_place import Thread
from tests.integration.cli.in_process import Shell
from tests.integration.sdk_groups import SETTINGS
from tests.waiting import LIMIT_S

FORGED = "x\x1b[2J\x9b31m\u202e\u2028y"


@pytest.fixture
def place() -> Iterator[tuple[Thread, EmbeddedCluster]]:
    """A cluster whose event loop runs in a thread, since commands run loops of their own."""
    thread = Thread()
    cluster = EmbeddedCluster(settings=SETTINGS)
    thread.run(cluster.__aenter__())
    yield thread, cluster
    thread.run(cluster.__aexit__(None, None, None))
    thread.close()


def on_terminal(*words: str) -> str:
    """What a command prints to a terminal."""
    ours, theirs = pty.openpty()
    with Popen(
        [sys.executable, "-m", "rocketpy", *words], stdin=theirs, stdout=theirs, stderr=theirs
    ) as done:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # the end of a terminal
            pass
        os.close(ours)
        assert done.wait(LIMIT_S) == 0
    return b"".join(parts).decode()


def test_a_client_id_cannot_forge_a_table(place: tuple[Thread, EmbeddedCluster]) -> None:
    """A client could show operators members that do not exist, or change their terminal's title."""
    thread, cluster = place
    client = ClientConfig(namesrv=cluster.namesrv_address, instance_name=FORGED)

    async def join() -> PushConsumer:
        async def handle(_: object) -> None:
            pass

        member = PushConsumer("g", handler=handle, client=client)
        member.subscribe("T")
        await member.start()
        return member

    thread.run(_send(cluster, b"a"))
    member = thread.run(join())
    try:
        shell = Shell(cluster.namesrv_address)
        for words in (("group", "describe", "g"), ("--json", "group", "describe", "g")):
            found = shell.text(*words)
            assert all(char.isprintable() for char in found.replace("\n", "")), found
            assert "2J" in found
    finally:
        thread.run(member.close())


def test_a_body_cannot_control_the_terminal(place: tuple[Thread, EmbeddedCluster]) -> None:
    """A message could clear the screen of the person who reads it. A file gets the bytes as they are."""
    thread, cluster = place
    thread.run(_send(cluster, f"first\n\t{FORGED}".encode()))
    words = ("--namesrv", cluster.namesrv_address, "consume", "T", "--from", "begin")
    shown = on_terminal(*words)
    assert "first\r\n\tx\\x1b[2J\\x9b31m" in shown
    assert "\x1b" not in shown
    assert Shell(cluster.namesrv_address).text("consume", "T", "--from", "begin") == f"first\n\t{FORGED}\n"


async def _send(cluster: EmbeddedCluster, body: bytes) -> None:
    async with Producer("p", namesrv=cluster.namesrv_address) as producer:
        await producer.send(Message("T", body))
