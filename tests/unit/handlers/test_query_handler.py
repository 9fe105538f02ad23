"""QueryHandler: offsets of queues, and messages by offset or key."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rocketpy.errors import DiskFull
from rocketpy.protocol.bodies import QueryConsumeQueueResponseBody, SubscriptionData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
)
from rocketpy.protocol.message.record import decode_all
from rocketpy.protocol.remoting.command import Command
from tests.turns import Turns
from tests.unit.handlers.broker_parts import PartsClient, broker
from tests.unit.store.faulty_disk import FaultyDisk
from tests.unit.store.helpers import put

QUEUE: dict[str, Any] = {"topic": "T", "queue_id": 0}


async def by_key(client: PartsClient, key: str, count: int = 8, *, unique: bool | None = None) -> Command:
    """Query messages of all times by a key."""
    header = QueryMessageRequestHeader(
        topic="T", key=key, max_num=count, begin_timestamp=0, end_timestamp=2**62, unique_key_query=unique
    )
    return await client.call(RequestCode.QUERY_MESSAGE, header)


async def test_offsets_and_times_of_a_queue(tmp_path: Path) -> None:
    """A consumer that starts at a time or at an end of the queue would start at another message."""
    async with broker(tmp_path) as (parts, client):
        put(parts.store, *range(3))
        stored_ms = parts.records()[0].store_timestamp
        for code, header, expected in (
            (RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(**QUEUE), {"offset": "3"}),
            (RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(**QUEUE), {"offset": "0"}),
            (
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                SearchOffsetRequestHeader(**QUEUE, timestamp=2**62),
                {"offset": "3", "boundaryType": "lower"},
            ),
            (
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                SearchOffsetRequestHeader(**QUEUE, timestamp=2**62, boundary_type="UPPER"),
                {"offset": "2", "boundaryType": "upper"},
            ),
            (
                RequestCode.GET_EARLIEST_MSG_STORETIME,
                GetEarliestMsgStoretimeRequestHeader(**QUEUE),
                {"timestamp": str(stored_ms)},
            ),
        ):
            assert (await client.call(code, header)).ext_fields() == expected


async def test_messages_are_found_by_their_keys(tmp_path: Path) -> None:
    """A query by unique id would return fewer messages than stored, or one by key more than requested."""
    async with broker(tmp_path) as (parts, client):
        put(parts.store, *range(5))
        assert len(decode_all((await by_key(client, "all", 2)).body)) == 2
        assert len(decode_all((await by_key(client, "all", 2, unique=True)).body)) == 5
        missing = await by_key(client, "none")
        assert (missing.code, missing.ext_fields()["indexLastUpdatePhyoffset"]) == (
            ResponseCode.QUERY_NOT_FOUND,
            "0",
        )


async def test_records_that_the_account_may_not_read_are_left_out(tmp_path: Path) -> None:
    """Two keys with the same hash would show an account the messages of another topic."""
    async with broker(tmp_path, may_read=lambda _, record: b"body 1" not in record) as (parts, client):
        put(parts.store, 0, 1)
        assert [record.body for record in decode_all((await by_key(client, "all")).body)] == [b"body 0"]
        assert (await by_key(client, "k1")).code == ResponseCode.QUERY_NOT_FOUND


async def entries(client: PartsClient, **header: Any) -> tuple[Command, QueryConsumeQueueResponseBody]:
    """Query entries of queue 0 of T."""
    wanted = QueryConsumeQueueRequestHeader(**{**QUEUE, "index": 0, "count": 50, **header})
    response = await client.call(RequestCode.QUERY_CONSUME_QUEUE, wanted)
    return response, QueryConsumeQueueResponseBody.decode(response.body or b"{}")


async def test_entries_of_a_consume_queue_are_listed(tmp_path: Path) -> None:
    """An operator could not see why a consumer does not get a message."""
    async with broker(tmp_path) as (parts, client):
        put(parts.store, *range(4))
        _, body = await entries(client, index=1, count=2, consumer_group="g")
        assert (body.min_queue_index, body.max_queue_index) == (0, 4)
        assert (len(body.queue_data or ()), body.filter_data) == (2, "g@T is not online!")
        await client.beat(subscriptions=(SubscriptionData(topic="T", sub_string="*"),))
        _, body = await entries(client, consumer_group="g")
        assert body.subscription_data is not None
        response, body = await entries(client, index=9)
        assert (response.remark, body.queue_data) == ("Index 9 of 0@T is not exist!", [])
        response, _ = await entries(client, queue_id=9)
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "9@T is not exist!")
        response, _ = await entries(client, topic=None, count=-1)
        assert response.code == ResponseCode.SYSTEM_ERROR


async def test_entries_of_a_queue_are_listed_while_no_index_file_can_be_created(tmp_path: Path) -> None:
    """An operator with a full disk would get an error for a queue that consumers can read."""
    disk = FaultyDisk(only="create")
    async with broker(tmp_path, disk=disk) as (parts, client):
        put(parts.store, 0)
        disk.fail_at, disk.fail_count = disk.calls + 1, 1000
        with pytest.raises(DiskFull):
            put(parts.store, *range(1, 150))
        _, body = await entries(client)
        assert (body.max_queue_index, len(body.queue_data or ())) == (150, 50)
        disk.fail_at = 0


async def test_a_search_for_a_key_of_many_messages_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 messages of 4 MB would be read at once, for a response that no frame can hold."""
    monkeypatch.setattr("rocketpy_broker.store.queue.key_search._BYTES_MAX", 6000)
    async with broker(tmp_path, "T") as (parts, client):
        for number in range(60):
            assert (await client.send(b"%02d" % number * 100, "KEYS\x01all\x02")).code == 0
        readings = itertools.count()
        parts.slices.now_ms = lambda: next(readings) / 5
        reads = Turns(parts.store.commit_log.read_record)
        monkeypatch.setattr(parts.store.commit_log, "read_record", reads)
        found = decode_all((await by_key(client, "all", 64)).body)
        reads.stop()
        assert found[-1].body == b"59" * 100
        assert 10 < len(found) < 30
        assert reads.total == len(found) + 1
        assert reads.longest <= 12


async def test_a_first_large_message_is_always_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message above the limit could not be found by its key."""
    monkeypatch.setattr("rocketpy_broker.store.queue.key_search._BYTES_MAX", 10)
    async with broker(tmp_path, "T") as (_, client):
        for number in range(2):
            await client.send(b"%d" % number, "KEYS\x01all\x02")
        assert [record.body for record in decode_all((await by_key(client, "all")).body)] == [b"1"]
