"""Leaders of a DLedger group are killed while messages are popped: the next one goes on with the pops."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from rocketpy.protocol.codes import ResponseCode
from tests.integration.broker.test_pop import (
    HOUR_MS,
    Popped,
    ack,
    arrive,
    change,
    changed,
    create,
    pop,
    pop_response,
    send_all,
)
from tests.integration.processes import stop
from tests.integration.raw_client import RawClient
from tests.integration.replication.test_ledger_kills import Group, group_of_processes
from tests.waiting import LIMIT_S

D_INVISIBLE_MS = 3000


async def kill_leader(group: Group) -> tuple[str, RawClient]:
    """Kill the leader; return its name, and a connection to the next one, which serves pops."""
    killed = await group.master()
    await stop(group.processes.pop(killed), signal.SIGKILL)
    name = await group.master(other_than=killed)
    client = await RawClient.open(group.addresses[name])
    served = (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT)
    async with asyncio.timeout(LIMIT_S):
        while (await pop_response(client, consumer_group="probe")).code not in served:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # it reads the check points
    return killed, client


@pytest.mark.slow
async def test_the_next_leader_goes_on_with_the_pops_of_a_killed_one(tmp_path: Path) -> None:
    """It would forget acknowledgements, give messages to a second worker, or skip messages."""
    async with group_of_processes(tmp_path) as group:
        async with await RawClient.open(group.addresses[await group.master()]) as client:
            await create(client)
            await send_all(client, "abcdef")
            a, b, c = await pop(client, 3)
            (d,) = await pop(client, 1, invisible_ms=D_INVISIBLE_MS)
            assert (await ack(client, a)).code == 0
            longer = changed(c, await change(client, c, HOUR_MS))
        killed, client = await kill_leader(group)
        async with client:
            found: dict[str, Popped] = {}
            while found.keys() < {"d", "e", "f"}:
                found |= {message.body: message for message in await arrive(client, 1)}
            assert found.keys() == {"d", "e", "f"}
            assert found["d"].record.reconsume_times == 1
            assert found["d"].record.store_timestamp >= d.receipt.pop_time + D_INVISIBLE_MS
            for done in (b, longer, found["d"], found["e"]):
                assert (await ack(client, done)).code == 0
            for used in (a, c, d):
                assert (await ack(client, used)).code == ResponseCode.NO_MESSAGE
        await group.start(killed)
        _, client = await kill_leader(group)
        async with client:
            assert await pop(client) == []
            for used in (a, b, longer, found["d"], found["e"]):
                assert (await ack(client, used)).code == ResponseCode.NO_MESSAGE
            assert (await ack(client, found["f"])).code == 0
