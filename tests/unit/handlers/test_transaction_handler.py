"""TransactionHandler: the end of a transaction, and a discarded one that is checked again."""

from __future__ import annotations

from pathlib import Path

from rocketpy.errors import StoreError
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import EndTransactionRequestHeader
from rocketpy.protocol.message.message_id import decode_message_id
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.services.delay.topic_rewrite import OP_TOPIC
from rocketpy_broker.store.busy import Reason
from tests.unit.handlers.broker_parts import PartsClient, broker
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


async def test_an_undecided_producer_leaves_the_transaction_open(tmp_path: Path) -> None:
    """A producer that does not know the result yet would roll its transaction back."""
    async with broker(tmp_path, "T") as (parts, client):
        header = await half(client, b"x", UNKNOWN)
        assert (await client.call(RequestCode.END_TRANSACTION, header)).code == ResponseCode.SUCCESS
        assert parts.transactions.table.is_open(header.tran_state_table_offset)
        assert parts.records(OP_TOPIC) == []


async def test_a_failed_end_leaves_the_transaction_open(tmp_path: Path) -> None:
    """A transaction whose end cannot be stored would be lost."""
    disk = FaultyDisk(only="pwrite")
    async with broker(tmp_path, "T", disk=disk) as (parts, client):
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
