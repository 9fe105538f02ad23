"""ConsumeStatsHandler: offsets and statistics of topics and their consumers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.protocol.bodies import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    MessageQueue,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    SubscriptionData,
    TopicStatsTable,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rocketpy_broker.handlers import consume_stats
from tests.unit.handlers.broker_parts import BrokerParts, PartsClient, broker, served
from tests.unit.store.helpers import put

QUEUE = MessageQueue("T", "broker-a", 0)


def parts_with_progress(root: Path) -> BrokerParts:
    """Return a broker whose topic T has three messages in queue 0, of which group g has consumed two."""
    parts = BrokerParts(root)
    parts.add_topics("T", "Ordered")
    parts.add_topics("Ordered", order=True)
    put(parts.store, *range(3))
    parts.offsets.commit("g", "T", 0, 2)
    return parts


async def group_stats(client: PartsClient, topic: str | None = None) -> ConsumeStats:
    """Return the statistics of group g."""
    header = GetConsumeStatsRequestHeader(consumer_group="g", topic=topic)
    return ConsumeStats.decode((await client.call(RequestCode.GET_CONSUME_STATS, header)).body)


async def test_the_offsets_of_a_topic_are_shown(tmp_path: Path) -> None:
    """QUIRKS 8. The tool topicStatus would show no queue."""
    parts = parts_with_progress(tmp_path)
    async with served(parts) as (client,):
        header = GetTopicStatsInfoRequestHeader(topic="T")
        response = await client.call(RequestCode.GET_TOPIC_STATS_INFO, header)
        table = TopicStatsTable.decode(response.body).offset_table
        times = [record.store_timestamp for record in parts.records()]
        assert (table[QUEUE].min_offset, table[QUEUE].max_offset) == (0, 3)
        assert table[QUEUE].last_update_timestamp == times[-1]
        empty = table[MessageQueue("T", "broker-a", 1)]
        assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
        missing = GetTopicStatsInfoRequestHeader(topic="Missing")
        response = await client.call(RequestCode.GET_TOPIC_STATS_INFO, missing)
        assert response.code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_progress_of_a_group_is_shown(tmp_path: Path) -> None:
    """The tool consumerProgress would show no lag, or topics without a subscription."""
    parts = parts_with_progress(tmp_path)
    parts.offsets.commit("g", "Deleted", 0, 1)
    async with served(parts) as (client,):
        stats = await group_stats(client)
        offsets = stats.offset_table[QUEUE]
        assert (offsets.broker_offset, offsets.consumer_offset) == (3, 2)
        assert offsets.last_timestamp == parts.records()[1].store_timestamp
        assert len(stats.offset_table) == 2
        assert not (await group_stats(client, "Deleted")).offset_table
        await client.beat(subscriptions=(SubscriptionData(topic="Other", sub_string="*"),))
        assert not (await group_stats(client, "T")).offset_table


@pytest.mark.parametrize(("reads", "writes"), [(1, 4), (4, 1)])
async def test_queues_that_are_only_read_or_written_are_shown(
    tmp_path: Path, reads: int, writes: int
) -> None:
    """The lag would be 0 while messages wait in queues that get no more messages, or that nobody reads."""
    parts = BrokerParts(tmp_path)
    parts.add_topics("T", read_queue_nums=reads, write_queue_nums=writes)
    put(parts.store, 1, queue_id=3)
    for queue_id in range(4):
        parts.offsets.commit("g", "T", queue_id, 0)
    waiting = MessageQueue("T", "broker-a", 3)
    async with served(parts) as (client,):
        await client.beat()
        lag = (await group_stats(client)).offset_table[waiting]
        assert lag.broker_offset - lag.consumer_offset == 1
        response = await client.call(
            RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T")
        )
        assert TopicStatsTable.decode(response.body).offset_table[waiting].max_offset == 1
        header = GetConsumeStatsInBrokerHeader(is_order=False)
        response = await client.call(RequestCode.GET_BROKER_CONSUME_STATS, header)
        assert ConsumeStatsList.decode(response.body).total_diff == 1
        spans = QueryConsumeTimeSpanRequestHeader(topic="T", group="g")
        response = await client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, spans)
        assert len(QueryConsumeTimeSpanBody.decode(response.body).consume_time_span_set) == 4


@pytest.mark.parametrize(("only_ordered", "lag", "topics"), [(False, 1, 1), (True, 0, 0)])
async def test_the_lag_of_all_groups_is_shown(
    tmp_path: Path, only_ordered: bool, lag: int, topics: int
) -> None:
    """The tool brokerConsumeStats would show no lag while messages wait."""
    parts = parts_with_progress(tmp_path)
    async with served(parts) as (client,):
        assert parts.groups.find("g") is not None
        header = GetConsumeStatsInBrokerHeader(is_order=only_ordered)
        response = await client.call(RequestCode.GET_BROKER_CONSUME_STATS, header)
        found = ConsumeStatsList.decode(response.body)
        (of_group,) = [table["g"] for table in found.consume_stats_list if "g" in table]
        assert (found.total_diff, len(of_group), found.broker_addr) == (lag, topics, "127.0.0.1:10911")


async def test_a_response_that_is_too_large_is_rejected_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with many queues would stop for seconds, for a response that exceeds the frame limit."""
    monkeypatch.setattr(consume_stats, "_RESPONSE_BYTES_MAX", 100)
    parts = parts_with_progress(tmp_path)
    parts.groups.find("g")
    async with served(parts) as (client,):
        for code, header in (
            (RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic="T")),
            (RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g")),
            (RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=False)),
            (
                RequestCode.QUERY_CONSUME_TIME_SPAN,
                QueryConsumeTimeSpanRequestHeader(topic="T", group="g"),
            ),
        ):
            response = await client.call(code, header)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert "request one topic, or one group" in (response.remark or "")


async def test_groups_of_a_topic_are_those_with_offsets_or_subscriptions(tmp_path: Path) -> None:
    """An operator would delete a topic that a group still consumes."""
    parts = parts_with_progress(tmp_path)
    async with served(parts) as (client,):
        await client.beat(groups=("online",), subscriptions=(SubscriptionData(topic="T", sub_string="*"),))
        header = QueryTopicConsumeByWhoRequestHeader(topic="T")
        response = await client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        assert GroupList.decode(response.body).group_list == ["online", "g"]


async def test_time_spans_show_how_late_a_group_is(tmp_path: Path) -> None:
    """An operator could not see for how long the oldest unconsumed message has waited."""
    parts = parts_with_progress(tmp_path)
    async with served(parts) as (client,):
        header = QueryConsumeTimeSpanRequestHeader(topic="T", group="g")
        response = await client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        first, empty = QueryConsumeTimeSpanBody.decode(response.body).consume_time_span_set
        times = [record.store_timestamp for record in parts.records()]
        assert (first.min_time_stamp, first.max_time_stamp) == (times[0], times[-1])
        assert (first.consume_time_stamp, first.delay_time >= 0) == (times[1], True)
        assert (empty.max_time_stamp, empty.delay_time) == (-1, 0)
        parts.offsets.commit("g", "T", 0, 3)
        response = await client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        first, _ = QueryConsumeTimeSpanBody.decode(response.body).consume_time_span_set
        assert first.delay_time == 0
        missing = QueryConsumeTimeSpanRequestHeader(topic="Missing", group="g")
        response = await client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, missing)
        assert response.code == ResponseCode.TOPIC_NOT_EXIST


async def test_groups_are_compared_by_their_lowest_offsets(tmp_path: Path) -> None:
    """A tool that corrects offsets would move a group past messages that it has not consumed."""
    parts = parts_with_progress(tmp_path)
    parts.offsets.commit("ahead", "T", 0, 3)
    async with served(parts) as (client,):
        for compared, left_out, offset in (
            ("ahead", None, 2),
            ("ahead", "g", 3),
            ("g", "g", 2**63 - 1),
        ):
            header = QueryCorrectionOffsetHeader(compare_group=compared, topic="T", filter_groups=left_out)
            response = await client.call(RequestCode.QUERY_CORRECTION_OFFSET, header)
            found = QueryCorrectionOffsetBody.decode(response.body).correction_offsets
            assert found == {0: offset}


async def test_statistics_of_a_topic_are_shown(tmp_path: Path) -> None:
    """The tool statsAll would show no rate while messages arrive."""
    async with broker(tmp_path) as (parts, client):
        header = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="T")
        missing = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
        assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")
        put(parts.store, 0)
        await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
        put(parts.store, *range(1, 6))
        parts.now_ms = 10_000
        response = await client.call(RequestCode.VIEW_BROKER_STATS_DATA, header)
        found = BrokerStatsData.decode(response.body)
        assert (found.stats_minute.sum, found.stats_hour.sum, found.stats_day.sum) == (5, 5, 5)
