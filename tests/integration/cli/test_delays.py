"""rocketpy send with times and delays, and rocketpy message recall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rocketpy.protocol.message.recall_handle import RecallHandle
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from tests.integration.cli.commands import run
from tests.integration.producer.test_recall import HANDLE, RecallBroker
from tests.integration.sdk_peers import Names


class TimerBroker(RecallBroker):
    """A broker of 5.3.3 that gives handles."""

    def respond(self, channel: Channel, request: Command) -> Command | None:
        """Give a handle for a timer message."""
        response = super().respond(channel, request)
        if request.code == RequestCode.SEND_MESSAGE_V2 and response is not None:
            stored = response.header_as(SendMessageResponseHeader)
            if "TIMER" in (request.header_as(SendMessageRequestHeaderV2).properties or ""):
                stored.recall_handle = HANDLE
            version, response = response.version, request.reply(header=stored)
            response.version = version
        return response


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        (("--deliver-at", "2100-06-01T09:00:00+02:00"), "TIMER_DELIVER_MS\x014115516400000"),
        (("--deliver-at", "2100-06-01T07:00Z"), "TIMER_DELIVER_MS\x014115516400000"),
        (("--delay", "90s"), "TIMER_DELAY_MS\x0190000"),
        (("--delay", "2d"), "TIMER_DELAY_MS\x01172800000"),
        (("--delay-level", "3"), "DELAY\x013"),
    ],
)
async def test_a_send_with_a_delay(options: tuple[str, ...], properties: str) -> None:
    """The message would come at once, or the handle be lost."""
    async with TimerBroker() as broker, Names(T={"a": broker.address}) as names:
        sent = [
            await run("send", "T", "hello", *options, *json_option, "-n", names.address)
            for json_option in ((), ("--json",))
        ]
        handle = None if "--delay-level" in options else HANDLE
        assert [done.status for done in sent] == [0, 0]
        assert json.loads(sent[1].out).get("recall_handle") == handle
        assert sent[0].out.endswith(f": SEND_OK, recall handle {HANDLE}\n" if handle else ": SEND_OK\n")
        assert all(f"\x02{properties}\x02" in text for text in broker.sent())
        if handle is None:
            return
        done = await run("message", "recall", "T", handle, "--yes", "-n", names.address)
        message_id = RecallHandle.decode(handle).message_id
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"took back message {message_id} at ")
        assert len(broker.recalls()) == 1


async def test_delays_in_json_lines(tmp_path: Path) -> None:
    """A schedule in a file could not be sent."""
    lines = [
        {"body": "1", "deliver_at": "2100-06-01T07:00:00Z"},
        {"body": "2", "delay": "90s"},
        {"body": "3", "delay": 90},
    ]
    file = tmp_path / "lines"
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    async with TimerBroker() as broker, Names(T={"a": broker.address}) as names:
        done = await run("send", "T", "--json-lines", "-f", str(file), "-n", names.address)
        assert done.status == 1
        assert "line 3: not a message: Expected `str | null`, got `int` - at `$.delay`" in done.err
        assert len(broker.sent()) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--delay", "3"),
            "such as 90s; a delay level is --delay-level 3",
        ),
        (("--delay", "soon"), "'soon' is not a delay; write a number with s, m, h or d"),
        (
            ("--deliver-at", "2100-06-01T09:00"),
            "has no time zone; add its offset, such as 2100-06-01T09:00+01:00",
        ),
        (("--deliver-at", "tomorrow"), "'tomorrow' is not a time; write one such as 2026-01-31T12:00+01:00"),
        (("--delay", "90s", "--json-lines"), "with --json-lines, tags, keys, properties and delays are in"),
    ],
)
async def test_a_wrong_delay(options: tuple[str, ...], words: str) -> None:
    """A message would be sent at another time than the user means."""
    body = () if "--json-lines" in options else ("hello",)
    done = await run("send", "T", *body, *options, "-n", "127.0.0.1:1")
    assert done.status == 2
    assert words in " ".join(done.err.replace("│", " ").split())


async def test_delays_exclude_each_other() -> None:
    """One of both would be ignored."""
    done = await run("send", "T", "x", "--delay", "90s", "--delay-level", "3", "-n", "127.0.0.1:1")
    assert done.status == 1
    assert "deliver_at, delay and delay_level exclude each other" in done.err


async def test_a_recall_asks_first() -> None:
    """A message that was wanted would be lost by a slip."""
    async with RecallBroker() as broker, Names(T={"a": broker.address}) as names:
        done = await run("message", "recall", "T", HANDLE, "-n", names.address)
        assert done.status == 2
        assert "take back a message of topic T at " in done.err
        assert broker.recalls() == []
        done = await run("message", "recall", "U", HANDLE, "--yes", "-n", names.address)
        assert done.status == 1
        assert "is of a message of topic T, not of U" in done.err
