"""rocketpy dlq: dead letters of a real group, listed, read and sent to it again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from rocketpy import AdminClient
from rocketpy_broker.embedded import EmbeddedCluster
from tests.integration.cli.commands import Done, run
from tests.integration.consumer.test_dead_letters import dead
from tests.integration.sdk_groups import SETTINGS, Seen, consuming
from tests.waiting import LIMIT_S, until


@pytest.fixture
async def letters() -> AsyncIterator[EmbeddedCluster]:
    """A cluster where group g has given up five messages."""
    async with EmbeddedCluster(settings=SETTINGS) as cluster:
        await dead(cluster, 5)
        async with AdminClient(cluster.namesrv_address) as admin, asyncio.timeout(LIMIT_S):
            while not await admin.dead_letters.groups():  # noqa: ASYNC110 - registrations have no event here
                await asyncio.sleep(0.01)
        yield cluster


async def dlq(cluster: EmbeddedCluster, *arguments: str) -> Done:
    """Run `rocketpy dlq`."""
    return await run("dlq", *arguments, "-n", cluster.namesrv_address)


async def test_dead_letters_are_listed_and_read(letters: EmbeddedCluster) -> None:
    """An operator would not learn that a group gave up messages, or which."""
    done = await dlq(letters, "list", "--json")
    assert (done.status, done.err) == (0, "")
    (listed,) = map(json.loads, done.out.splitlines())
    assert (listed["group"], listed["messages"]) == ("g", 5)
    table = await dlq(letters, "list")
    heading, row = table.out.splitlines()
    assert heading == "group  dead letters  last stored"
    assert row.split()[:2] == ["g", "5"]
    assert row.endswith("Z")
    done = await dlq(letters, "read", "g", "--json")
    read = [json.loads(line) for line in done.out.splitlines()]
    assert sorted(message["properties"]["n"] for message in read) == list("01234")
    assert {message["dead_letter_reason"] for message in read} == {"the handler returned Later"}
    lines = (await dlq(letters, "read", "g")).out.splitlines()
    assert [line.endswith(" [the handler returned Later]") for line in lines] == [True] * 5
    times = sorted(message["store_timestamp"] for message in read)
    assert times[-1] == listed["last_stored_ms"]
    assert len((await dlq(letters, "read", "g", "--count", "2")).out.splitlines()) == 2
    assert await dlq(letters, "read", "nobody") == (0, "", "rocketpy: group nobody has no dead letters\n")
    assert (await dlq(letters, "read", "g", "--since", "2100-01-01")).out == ""


async def test_chosen_dead_letters_are_sent_again(letters: EmbeddedCluster) -> None:
    """A group would get all dead letters instead of the one that was repaired, or a dry run send them."""
    read = [json.loads(line) for line in (await dlq(letters, "read", "g", "--json")).out.splitlines()]
    chosen = next(message["message_id"] for message in read if message["properties"]["n"] == "3")
    works = Seen()
    async with consuming(letters, works):
        done = await dlq(letters, "resend", "g", "--all", "--dry-run", "--json")
        assert (done.status, len(done.out.splitlines())) == (0, 5)
        done = await dlq(letters, "resend", "g", "--id", chosen, "--id", "Missing", "--yes")
        assert (done.status, done.out) == (1, "resent 1 dead letters to group g\n")
        assert "has no dead letter with id Missing" in done.err
        await works.until(1)
        assert [message.properties["n"] for message in works.messages] == ["3"]
        done = await dlq(letters, "resend", "g", "--all", "--yes", "--json")
        assert json.loads(done.out) == {"group": "g", "resent": 5, "damaged": 0, "dry_run": False}
        await until(lambda: len(works.messages) == 6)
    assert sorted(message.properties["n"] for message in works.messages) == list("012334")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--yes",), "give --id or --all"),
        (("--all", "--id", "X", "--yes"), "give --id or --all"),
        (("--all",), "without a terminal, give --yes"),
        (("--all", "--since", "7", "--yes"), "give an age such as 2h"),
    ],
)
async def test_wrong_usage_sends_nothing(
    cluster: EmbeddedCluster, arguments: tuple[str, ...], says: str
) -> None:
    """A mistake in the arguments could resend thousands of messages."""
    done = await dlq(cluster, "resend", "g", *arguments)
    assert (done.status, done.out) == (2, "")
    assert says in done.err
