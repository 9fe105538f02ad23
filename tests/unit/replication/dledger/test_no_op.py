"""The entry with which a leader begins its term."""

import pytest

from rocketpy.protocol.message.record import decode
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.replication.dledger.no_op import NO_OP_TOPIC, NoOp


@pytest.mark.parametrize("host", [bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(20)])
def test_it_is_a_record_that_no_queue_gets(host: bytes) -> None:
    """A Java broker of the group would show it to consumers, or fail to read its own commit log."""
    body = NoOp(lambda: 1234, host).body(4096)
    record = decode(body)
    assert (record.topic, record.queue_id, record.queue_offset, record.flag) == (NO_OP_TOPIC, 0, 0, 0)
    assert (record.physical_offset, record.size, record.body) == (4096, len(body), b"")
    assert record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK
    assert (record.born_timestamp, record.store_timestamp) == (1234, 1234)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (0, 0)
    assert len(NoOp(lambda: 1 << 40, host).body(1 << 40)) == len(body)
