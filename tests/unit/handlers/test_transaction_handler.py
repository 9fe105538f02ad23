"""TransactionHandler: the end of a transaction, and a discarded one that is checked again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from rocketpy.protocol.message import properties as props
from rocketpy.protocol.message.message_id import decode_message_id, message_id
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.services.delay.topic_rewrite import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from rocketpy_broker.store import MessageInner
from rocketpy_broker.store.busy import Reason
from tests.unit.handlers.broker_parts import HOST, BrokerParts, PartsClient, served
from tests.unit.store.faulty_disk import FaultyDisk

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


async def half(client: PartsClient, body: bytes, decision: int = COMMIT) -> EndTransactionRequestHeader:
    """Send a half message; return the header that ends its transaction."""
    text = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    response = await client.send(body, text, sys_flag=MessageSysFlag.TRANSACTION_PREPARED)
    fields = response.ext_fields()
    return EndTransactionRequestHeader(
        producer_group="p",
        tran_state_table_offset=int(fields["queueOffset"]),
        commit_log_offset=decode_message_id(fields["msgId"])[1],
        commit_or_rollback=decision,
        msg_id="unique id",
    )


async def test_only_the_first_decision_counts(tmp_path: Path) -> None:
    """QUIRKS 27, 28. A message would be delivered after its rollback, or twice."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    async with served(parts) as (client,):
        committed, rolled_back = await half(client, b"yes"), await half(client, b"no", ROLLBACK)
        for header, code in (
            (committed, ResponseCode.SUCCESS),
            (rolled_back, ResponseCode.SUCCESS),
            (committed, ResponseCode.SYSTEM_ERROR),
            (msgspec.structs.replace(rolled_back, commit_or_rollback=COMMIT), ResponseCode.SYSTEM_ERROR),
        ):
            assert (await client.call(RequestCode.END_TRANSACTION, header)).code == code
        (record,) = parts.records()
        assert (record.body, record.sys_flag) == (b"yes", COMMIT)
        assert record.prepared_transaction_offset == committed.commit_log_offset
        assert len(parts.records(OP_TOPIC)) == 2


async def test_an_undecided_producer_leaves_the_transaction_open(tmp_path: Path) -> None:
    """A producer that does not know the result yet would roll its transaction back."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    async with served(parts) as (client,):
        header = await half(client, b"x", UNKNOWN)
        assert (await client.call(RequestCode.END_TRANSACTION, header)).code == ResponseCode.SUCCESS
        assert parts.transactions.table.is_open(header.tran_state_table_offset)
        assert parts.records(OP_TOPIC) == []


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 5}, "The transaction state table offset wrong"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 0}, "Find prepared transaction message failed"),
    ],
)
async def test_a_request_for_another_message_is_rejected(
    tmp_path: Path, changes: dict[str, object], remark: str
) -> None:
    """A client could publish a message that was never committed, or any record a second time."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    async with served(parts) as (client,):
        await client.send(b"at 0")
        header = await half(client, b"x")
        response = await client.call(RequestCode.END_TRANSACTION, msgspec.structs.replace(header, **changes))
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert (await client.call(RequestCode.END_TRANSACTION, header)).code == ResponseCode.SUCCESS


async def test_a_failed_end_leaves_the_transaction_open(tmp_path: Path) -> None:
    """A transaction whose end cannot be stored would be lost."""
    disk = FaultyDisk(only="pwrite")
    parts = BrokerParts(tmp_path, disk=disk)
    parts.add_topics("T")
    async with served(parts) as (client,):
        header = await half(client, b"x")
        parts.store.reject(Reason.SLAVE, StoreError("a slave"))
        response = await client.call(RequestCode.END_TRANSACTION, header)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert parts.transactions.table.is_open(header.tran_state_table_offset)
        parts.store.reject(Reason.SLAVE, None)
        disk.fail_at, disk.fail_count = disk.calls + 1, 1000
        assert (await client.call(RequestCode.END_TRANSACTION, header)).code == ResponseCode.SYSTEM_ERROR
        assert parts.transactions.table.is_open(header.tran_state_table_offset)
        disk.fail_at = 0


async def test_an_operator_resumes_a_discarded_transaction(tmp_path: Path) -> None:
    """A transaction that was discarded while its producer was offline could never be ended."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T")
    resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
    async with served(parts) as (client,):
        text = (
            "TRANSACTION_CHECK_TIMES\x0115\x02TRAN_PREPARED_QUEUE_OFFSET\x013\x02REAL_TOPIC\x01T\x02"
            "REAL_QID\x010\x02"
        )
        parts.store.put_message(MessageInner(CHECK_MAX_TOPIC, 0, b"x", text.encode(), born_timestamp=1))
        discarded = message_id(HOST, 0)
        ordinary = (await client.send(b"y")).ext_fields()["msgId"]
        for wanted, code in (
            (ordinary, ResponseCode.SYSTEM_ERROR),
            (message_id(HOST, 1 << 40), ResponseCode.SYSTEM_ERROR),
            (None, ResponseCode.SYSTEM_ERROR),
            (discarded, ResponseCode.SUCCESS),
        ):
            header = ResumeCheckHalfMessageRequestHeader(msg_id=wanted)
            assert (await client.call(resume, header)).code == code
        (record,) = parts.records(HALF_TOPIC)
    found = props.decode(record.properties)
    assert (found["TRANSACTION_CHECK_TIMES"], "TRAN_PREPARED_QUEUE_OFFSET" in found) == ("0", False)
