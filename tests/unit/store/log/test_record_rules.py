"""When a record was stored, from its first bytes."""

import pytest

from rocketpy.protocol.message.record import encode_record, host_bytes
from rocketpy.protocol.message.sysflag import MessageSysFlag
from rocketpy_broker.store.log.messages import TIMESTAMP_BYTES, timestamp_in

V6 = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


@pytest.mark.parametrize("flag", [0, MessageSysFlag.COMPRESSED, 8, V6, V6 | 8, MessageSysFlag.STORE_HOST_V6])
def test_the_time_is_where_the_records_flags_put_it(flag: int) -> None:
    """A consumer that is reset to a time would begin anywhere."""
    born = host_bytes("::1" if flag & MessageSysFlag.BORN_HOST_V6 else "127.0.0.1", 1)
    stored = host_bytes("::1" if flag & MessageSysFlag.STORE_HOST_V6 else "127.0.0.1", 2)
    record = encode_record(b"T", 0, 0, 0, 0, flag, 1111, born, 2222, stored, 0, 0, b"body" * 30, b"")
    assert timestamp_in(record[:TIMESTAMP_BYTES]) == 2222


def test_without_a_record_there_is_no_time() -> None:
    """A deleted record would count as one of 1970."""
    assert timestamp_in(None) == -1
