"""TransactionChecker: which producers get checks, and how copies replace half messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.headers import CheckTransactionStateRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.record import decode
from rocketpy_broker.config.model import TransactionConfig
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from rocketpy_broker.services.transactions.transaction_check import TransactionChecker
from rocketpy_broker.services.transactions.transactions import TransactionService
from rocketpy_broker.store import MessageInner
from rocketpy_broker.store.busy import Reason
from rocketpy_broker.store.config import RetentionConfig
from rocketpy_broker.store.files.disk import Disk
from rocketpy_broker.store.upkeep.driver import StoreDriver
from tests.unit.handlers.broker_parts import HOST, BrokerParts, served
from tests.unit.store.faulty_disk import UnreadableDisk
from tests.unit.store.helpers import put, small_config
from tests.waiting import until

BORN_MS = 1_000_000
TEXT = "PGROUP\x01p\x02UNIQ_KEY\x01id\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02"


class Checks:
    """A checker with the store, the clients and the wall clock of `BrokerParts`. made: created topics."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.parts = parts = BrokerParts(root, disk=disk)
        self.made: list[str] = []
        self.driver = StoreDriver(parts.store)
        self.checker = TransactionChecker(
            parts.store,
            self.driver,
            parts.transactions,
            TransactionConfig(timeout_ms=6000, check_max=2),
            parts.tasks,
            channels=lambda group, _: parts.clients.producer_channels(group),  # type: ignore[arg-type,return-value] # the registry has no types of channels
            make_topic=self.made.append,
            on_written=lambda: None,
            clock=lambda: parts.time_ms,
        )

    def half(self, text: str = TEXT) -> None:
        """Store a half message."""
        self.parts.store.put_message(MessageInner(HALF_TOPIC, 0, b"x", text.encode(), born_timestamp=BORN_MS))

    async def at(self, age_ms: int) -> None:
        """Check the half messages at this age."""
        self.parts.time_ms = BORN_MS + age_ms
        await self.checker.check()

    def copies(self, topic: str = HALF_TOPIC) -> list[dict[str, str]]:
        """Return the properties of a topic's messages."""
        return [props.decode(record.properties) for record in self.parts.records(topic)]


async def test_producers_get_checks_in_turn_with_the_own_topic_of_the_message(tmp_path: Path) -> None:
    """QUIRKS 27. Producers would get checks for the half topic, or one of them would get all checks."""
    checks = Checks(tmp_path)
    async with served(checks.parts, clients=2) as (first, second):
        await first.produce("p1", "p")
        await second.produce("p2", "p")
        checks.half()
        await checks.at(5999)
        assert len(checks.copies()) == 1, "younger than the timeout"
        await checks.at(6000)
        await checks.at(7000)
        await until(lambda: first.received and second.received)
        assert [copy.get("TRANSACTION_CHECK_TIMES") for copy in checks.copies()] == [None, "1", "2"]
        headers = []
        for client in (first, second):
            (request,) = client.received
            header = request.header_as(CheckTransactionStateRequestHeader)
            record = decode(request.body)
            assert (record.topic, record.queue_id, record.body) == ("T", 1, b"x")
            assert (record.queue_offset, header.msg_id) == (header.tran_state_table_offset, "id")
            assert props.decode(record.properties)["WAIT"] == "false"
            headers.append(header)
        records = checks.parts.records(HALF_TOPIC)
        offsets = {header.tran_state_table_offset: header.commit_log_offset for header in headers}
        assert offsets == {1: records[1].physical_offset, 2: records[2].physical_offset}


async def test_a_transaction_without_a_result_is_discarded(tmp_path: Path) -> None:
    """Checks of a transaction that no producer knows would never end."""
    checks = Checks(tmp_path)
    async with served(checks.parts):
        checks.half()
        for age_ms in (6000, 7000, 8000, 9000):
            await checks.at(age_ms)
        (discarded,) = checks.copies(CHECK_MAX_TOPIC)
        assert discarded["UNIQ_KEY"] == "id"
        assert set(checks.made) == {HALF_TOPIC, CHECK_MAX_TOPIC}
        assert not checks.parts.transactions.table.open
        assert len(checks.copies()) == 3


async def test_an_unreadable_half_message_does_not_stop_the_checks_of_others(tmp_path: Path) -> None:
    """No later transaction would end: its messages would stay invisible, though its producer is online."""
    disk = UnreadableDisk()
    checks = Checks(tmp_path, disk)
    async with served(checks.parts, clients=1) as (producer,):
        await producer.produce("p1", "p")
        checks.half()
        while len(checks.parts.store.commit_log.files.mapped_files) < 2:
            put(checks.parts.store, 0, body=bytes(4000))
        for _ in range(9):
            checks.half()
        disk.unreadable = "commitlog/00000000000000000000"
        with pytest.raises(StoreError, match="planned failure"):
            await checks.at(6000)
        disk.unreadable = ""
        times = [copy.get("TRANSACTION_CHECK_TIMES") for copy in checks.copies()]
        assert times == [None] * 10 + ["1"] * 9
        await checks.at(6000)
        assert len(checks.copies()) == 29


async def test_transactions_are_kept_as_long_as_messages(tmp_path: Path) -> None:
    """With fileReservedTime=168, open transactions were lost after three days, and messages after a week."""
    checks = Checks(tmp_path)
    checks.parts.store.config = small_config(tmp_path, retention=RetentionConfig(reserved_hours=168))
    async with served(checks.parts):
        checks.half()
        await checks.at(168 * 3_600_000)
        assert checks.copies(CHECK_MAX_TOPIC) == []
        await checks.at(168 * 3_600_000 + 1)
        assert len(checks.copies(CHECK_MAX_TOPIC)) == 1


async def test_an_immune_transaction_keeps_the_offset_that_its_producer_knows(tmp_path: Path) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS: a late commit would not find the copy of its message."""
    checks = Checks(tmp_path)
    async with served(checks.parts) as (client,):
        await client.produce("p1", "p")
        checks.half(TEXT + "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
        for age_ms in (6000, 7000):
            await checks.at(age_ms)
        assert [copy.get("TRAN_PREPARED_QUEUE_OFFSET") for copy in checks.copies()] == [None, "0", "0"]
        assert client.received == []


async def test_a_missing_producer_is_reported_once_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators would not see why transactions stay open, or get a line for each of them."""
    checks = Checks(tmp_path)
    async with served(checks.parts):
        for _ in range(3):
            checks.half()
        await checks.at(6000)
    lines = [record.getMessage() for record in caplog.records if "no producer" in record.getMessage()]
    assert lines == ["no producer of group p is online to check 3 transactions"]


async def test_a_store_that_rejects_copies_ends_the_round(tmp_path: Path) -> None:
    """A slave or a full disk: transactions would be dropped without a copy."""
    checks = Checks(tmp_path)
    async with served(checks.parts):
        checks.half()
        checks.parts.store.reject(Reason.SLAVE, StoreError("a slave"))
        with pytest.raises(StoreError, match="a slave"):
            await checks.at(6000)
        assert checks.parts.transactions.table.is_open(0)
        checks.parts.store.reject(Reason.SLAVE, None)
        await checks.at(6000)
        assert len(checks.copies()) == 2


async def test_open_transactions_are_found_after_a_restart(tmp_path: Path) -> None:
    """After a restart, replaced half messages would be checked, or ended ones be open."""
    checks = Checks(tmp_path)
    parts = checks.parts
    async with served(parts):
        checks.half()
        checks.half(TEXT.replace("id", "other"))
        await checks.at(6000)
        _, entry = parts.transactions.table.end(3)
        assert entry is not None
        parts.store.put_message(parts.transactions.op_message(3, 0))
        parts.store.put_message(MessageInner(OP_TOPIC, 0, b"no number", born_timestamp=1))
        restarted = TransactionService(parts.store, parts.offsets, HOST)
        restarted.load()
        assert list(restarted.table.open) == [2]
        found = restarted.read(2)
        assert found is not None
        assert props.decode(found.record.properties)["UNIQ_KEY"] == "id"
        assert restarted.read(3) is None
