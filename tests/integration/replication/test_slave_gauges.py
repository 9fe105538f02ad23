"""What a slave, or a former leader, shows about messages that only a master delivers."""

from __future__ import annotations

from pathlib import Path

from rocketpy import Message, SimpleConsumer
from rocketpy_broker import Broker
from tests.integration.broker.test_deferred import send
from tests.integration.broker.test_timers import timed
from tests.integration.ha_pair import caught_up, pair
from tests.integration.ledger_group import ledger_group
from tests.integration.pop_cases import FIRST, receive
from tests.integration.raw_client import RawClient
from tests.waiting import until

HALF = "UNIQ_KEY\x01h\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"


def shown(broker: Broker) -> tuple[set[int], int, int, str]:
    """The metrics of delayed, timed and half messages, and what tools show of timers."""
    state = broker._state()
    table = broker.delivery.timers.runtime_info()
    return set(state.delayed.values()), state.timed, state.halves, table["timerCongestNum"]


async def test_a_slave_shows_no_messages_that_its_master_delivers(tmp_path: Path) -> None:
    """They would count twice, and those of the slave would grow for ever: it never delivers them."""
    async with pair(tmp_path) as brokers:
        master = await brokers.master(timerFlushIntervalMs="50")
        slave = await brokers.slave(timerFlushIntervalMs="50")
        async with await RawClient.open(master.address) as client:
            assert (await send(client, b"x", "DELAY\x0118\x02")).code == 0
            assert (await send(client, b"x", timed("a", TIMER_DELAY_MS=60_000))).code == 0
            assert (await send(client, b"x", HALF, sys_flag=4)).code == 0
            await until(lambda: shown(master) == ({1}, 1, 1, "1"))
            await until(lambda: master.delivery.timers._timers.checkpoint.queue_offset == 1)
            assert (await send(client, b"later than the checkpoint")).code == 0
        await caught_up(master, slave)
        await until(lambda: slave.delivery.timers._timers.queue_offset == 1)
        assert shown(slave) == ({0}, 0, 0, "0")
        assert slave.delivery.timers._timers.counts == {"T": 1}


async def test_a_former_leader_forgets_what_is_in_flight(tmp_path: Path) -> None:
    """Metrics and consumer statistics would show it for ever, and it would stay in memory."""
    async with ledger_group(tmp_path) as group:
        master = await group.master()
        async with group.producer() as producer:
            await producer.send(Message("T", b"x"))
        async with SimpleConsumer("g", group.namesrv_address, config=FIRST) as consumer:
            consumer.subscribe("T")
            await receive(consumer, 1)
            points = master.delivery.pop.points
            assert sum(points.in_flight.counts.values()) == 1
            for slave in group.slaves():
                await group.stop(group.name_of(slave))
            await group.end_silence()
            await until(lambda: master._sync._copying is not None)
            assert not points.in_flight.counts
            assert len(points.in_flight) == 0
