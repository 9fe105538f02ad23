"""Which requests work while a master is offline, and its slave and another broker run."""

import time
from pathlib import Path

import pytest

from rocketpy import (
    ClientConfig,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    RetryConfig,
)
from rocketpy.errors import Outcome, RocketError
from tests.integration.delays import jump_ahead
from tests.integration.ha_pair import caught_up, log_bytes, pair
from tests.mqproducer.ordered_topic import ordered_topic_while_a_master_is_away
from tests.waiting import until

SETTINGS = {
    "messageDelayLevel": "1h",
    "transactionTimeOut": "3600000",
    "transactionCheckInterval": "50",
}
QUICK = ClientConfig(route_refresh_ms=100, heartbeat_ms=100)
COMMIT = LocalTransactionState.COMMIT


async def test_requests_that_succeed_wait_or_fail_without_a_master(tmp_path: Path) -> None:
    """A dead master would block all sends, reorder messages, or lose delayed and half messages."""
    asked: list[bytes] = []

    def check(half: MessageExt) -> LocalTransactionState:
        asked.append(half.body)
        return COMMIT

    config = ProducerConfig(retry=RetryConfig(pause_ms=1))
    async with (
        pair(tmp_path) as brokers,
        Producer("g", brokers.namesrv_address, config=config, client=QUICK) as producer,
    ):
        master = await brokers.master(**SETTINGS)
        address = master.replication.server.address
        assert address is not None
        slave = await brokers.slave("slave", 1, **SETTINGS)
        producer.check_transactions(check)
        await producer.create_topic("Only", 1)
        await brokers.start("other", brokerName="other", **SETTINGS)
        await producer.create_topic("Both", 1)
        queues = await producer.fetch_publish_message_queues("Both")
        assert {queue.broker_name for queue in queues} == {"pair", "other"}
        await until(lambda: slave.topics.get("Both") is not None)

        async def work(_half: Message) -> LocalTransactionState:
            await producer.send(Message("Only", b"late", delay_level=1))
            await caught_up(master, slave)
            await brokers.stop(master)
            return COMMIT

        half = await producer.send_in_transaction(
            Message("Only", b"half"), local_transaction=work, timeout_ms=1000
        )
        assert half.state is COMMIT
        results = [await producer.send(Message("Both", b"x")) for _ in range(8)]
        assert {result.queue.broker_name for result in results} == {"other"}
        with pytest.raises(RocketError) as failure:
            await producer.send(
                Message("Both", b"in order"), queue=MessageQueue("Both", "pair", 0), timeout_ms=300
            )
        assert failure.value.outcome is Outcome.NOT_SENT
        jump_ahead(slave)
        jumped = time.monotonic()
        await until(lambda: time.monotonic() > jumped + 0.3)  # six intervals
        assert slave.store.max_offset_in_queue("Only", 0) == 0
        assert asked == []

        master = await brokers.master(**SETTINGS, haListenPort=str(address.port))
        jump_ahead(master)
        await until(lambda: master.store.max_offset_in_queue("Only", 0) == 2)
        assert asked == [b"half"]
        await caught_up(master, slave)
        await until(lambda: slave.store.max_offset_in_queue("Only", 0) == 2)
        assert log_bytes(slave) == log_bytes(master)
        async with PullConsumer("readers", namesrv=brokers.namesrv_address) as consumer:
            found = await consumer.pull(MessageQueue("Only", "pair", 0), 0)
        assert {message.body for message in found.messages} == {b"late", b"half"}


async def test_an_ordered_topic_keeps_its_queues(tmp_path: Path) -> None:
    """Without a master, keys of an ordered topic would move to other queues, and lose their order."""
    async with pair(tmp_path) as brokers:
        master = await brokers.master()
        slave = await brokers.slave("slave", 1)
        await brokers.start("other", brokerName="other")
        port, ha_address = master.address.port, master.replication.server.address
        assert ha_address is not None

        async def copied() -> None:
            await caught_up(master, slave)
            await until(lambda: slave.topics.get("Ordered") is not None)

        async def start() -> None:
            await brokers.master(listen=f"127.0.0.1:{port}", haListenPort=str(ha_address.port))

        await ordered_topic_while_a_master_is_away(
            brokers.namesrv_address, copied=copied, kill=lambda: brokers.stop(master), start=start
        )
