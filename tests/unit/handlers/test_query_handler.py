"""QueryHandler: queries of queues and messages."""

from pathlib import Path

import pytest

from rocketpy.errors import DiskFull
from rocketpy.protocol.bodies import QueryConsumeQueueResponseBody
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.headers import QueryConsumeQueueRequestHeader
from rocketpy_broker.handlers.pull.query import QueryHandler
from rocketpy_broker.store import MessageStore
from tests.unit.handlers.handler_server import HandlerServer, running
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import put, small_config


async def test_entries_of_a_queue_are_listed_while_no_index_file_can_be_created(tmp_path: Path) -> None:
    """An operator with a full disk would get an error for a queue that consumers can read."""
    disk = FaultyDisk(only="create")
    store = MessageStore(small_config(tmp_path), disk=disk)
    store.open()
    put(store, 0)
    disk.fail_at, disk.fail_count = disk.calls + 1, 1000
    with pytest.raises(DiskFull):
        put(store, *range(1, 20))
    server = HandlerServer(QueryHandler(store, lambda *_: None, may_read=lambda *_: True))
    async with running(server) as (client,):
        header = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=0, count=50)
        response = await client.call(RequestCode.QUERY_CONSUME_QUEUE, header)
    body = QueryConsumeQueueResponseBody.decode(response.body)
    assert (body.max_queue_index, len(body.queue_data or ())) == (20, 20)
    disk.fail_at = 0
    store.close()
