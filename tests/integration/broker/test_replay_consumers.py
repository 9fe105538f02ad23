"""Replays requests that Java's consumers and mqadmin sent to a Java broker, and compares the responses."""

import asyncio

import pytest

from rocketpy.protocol import fastjson
from rocketpy.protocol.codes import RequestCode
from rocketpy_broker import EmbeddedCluster
from tests.golden_data import RecordedFrame
from tests.integration.broker.test_replay import (
    BROKER_A,
    BROKER_B,
    COMMON,
    OWN_FIELDS,
    STRICT,
    Exchange,
    Replay,
)

# Transactions cannot be replayed (their ends name physical offsets), so some queues have fewer messages.
SHIFTED_STEPS = ("pull OFFSET at max", "pull block")
COMPARED = frozenset({
    RequestCode.GET_MIN_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.CLONE_GROUP_OFFSET, RequestCode.VIEW_BROKER_STATS_DATA, RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.QUERY_CORRECTION_OFFSET,
})  # fmt: skip
"""Requests whose responses do not depend on the missing messages."""


@pytest.fixture(scope="module")
def exchanges() -> list[Exchange]:
    """The exchanges of all scenarios, which build upon each other and are sent once."""
    return asyncio.run(replay_all())


async def replay_all() -> list[Exchange]:
    settings = COMMON | {"enablePropertyFilter": "true"}
    async with EmbeddedCluster(settings=settings) as a, EmbeddedCluster(settings=STRICT) as b:
        addresses = {BROKER_A: a.brokers[0].address, BROKER_B: b.brokers[0].address}
        done: list[Exchange] = []
        for scenario in ("json-producer", "json-consumer", "json-push", "json-admin"):
            replay = Replay(addresses)
            done += await replay.run(scenario)
            await replay.close()
        return done


def shape(body: bytes) -> set[str]:
    """The names of the fields of a JSON object; empty for any other body."""
    if not body:
        return set()
    value = fastjson.loads(body)
    return set(value) if isinstance(value, dict) else set()


def recorded_body(frame: RecordedFrame) -> bytes:
    return frame.data[len(frame.data) - frame.info["bodyLength"] :] if frame.info["bodyLength"] else b""


def test_consumers_and_operators_get_the_recorded_responses(exchanges: list[Exchange]) -> None:
    """QUIRKS 8, 10, 38, 41: Java's consumers or mqadmin would get unexpected responses."""
    compared = [
        exchange
        for exchange in exchanges
        if exchange.request.info["code"] in COMPARED and exchange.request.info["server"] == BROKER_A
    ]
    different: list[tuple[object, ...]] = []
    for request, ours, theirs in compared:
        info = request.info
        if ours is None:
            different.append((info["n"], info["step"], "no response"))
            continue
        fields = set(ours.ext_fields()) - OWN_FIELDS
        mine = ours.code, fields, shape(ours.body)
        wanted = theirs.info["code"], set(theirs.info["extFields"] or {}), shape(recorded_body(theirs))
        if mine != wanted:
            different.append((info["n"], info["step"], mine, wanted))
    assert different == []
    assert len({exchange.request.info["code"] for exchange in compared}) >= 25


def test_pulls_get_the_recorded_codes(exchanges: list[Exchange]) -> None:
    """QUIRKS 32, 34, 35: a Java pull consumer would get other statuses."""
    pulls = [
        (request.info["step"], ours.code, theirs.info["code"], ours.remark, theirs.info["remark"])
        for request, ours, theirs in exchanges
        if request.info["code"] == RequestCode.PULL_MESSAGE
        and request.info["step"].startswith("pull")
        and not request.info["step"].startswith(SHIFTED_STEPS)
        and ours is not None
    ]
    assert [pull for pull in pulls if pull[1] != pull[2]] == []
    assert {pull[2] for pull in pulls} >= {0, 19, 20, 21}
    assert [pull for pull in pulls if pull[2] in {0, 19, 20, 21} and pull[3] != pull[4]] == []
