"""Replays requests of Java clients with and without keys to a Java broker with access control (QUIRKS 31)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.protocol.bodies import GetBrokerClusterAclConfigResponseBody, PlainAccessConfig
from rocketpy.protocol.codes import RequestCode
from rocketpy.protocol.remoting.command import decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy_broker import Broker, load_broker_config
from tests.golden_data import RecordedFrame
from tests.integration.broker.test_replay import Replay
from tests.integration.small import SMALL

RECORDED = "127.0.0.1:20050"
ACCOUNTS = """
accounts:
- {accessKey: RocketMQ, secretKey: 12345678, admin: true}
- {accessKey: rocketmq2, secretKey: 12345678, admin: false, topicPerms: [TopicA=DENY]}
"""


def said(code: int, remark: str | None) -> tuple[int, str]:
    """The code, and the remark without the Java source position at its end."""
    return code, (remark or "").partition(", org.apache")[0]


@pytest.mark.parametrize("scenario", ["acl", "acl-bin"])
async def test_recorded_clients_get_the_recorded_responses(tmp_path: Path, scenario: str) -> None:
    """Java's clients would be refused with their own keys, or let in with wrong ones."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "broker.conf").write_text("aclEnable=true\nlistenPort=0\nbrokerClusterName=GoldenCluster\n")
    settings = {**SMALL, "storePathRootDir": str(tmp_path / "store")}
    broker = Broker(load_broker_config(tmp_path / "broker.conf", settings))
    await broker.start()
    replay = Replay({RECORDED: broker.address})
    try:
        exchanges = await replay.run(scenario)
    finally:
        await replay.close()
        await broker.close()
    different = [
        (one.request.info["n"], one.request.info["step"], ours, theirs)
        for one in exchanges
        if (ours := said(one.response.code, one.response.remark))
        != (theirs := said(one.theirs.info["code"], one.theirs.info["remark"]))
    ]
    assert different == []
    assert len({said(recorded.info["code"], recorded.info["remark"]) for _, _, recorded in exchanges}) >= 4
    for one in exchanges:
        if one.request.info["code"] == RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG:
            shown, known = accounts_in(one.response.body), accounts_in(body_of(one.theirs))
            assert [account.access_key for account in shown] == [account.access_key for account in known]
            assert {account.secret_key for account in shown} == {None}
            assert None not in {account.secret_key for account in known}


def body_of(recorded: RecordedFrame) -> bytes:
    (frame,) = FrameDecoder().feed(recorded.data)
    return decode_command(frame).body


def accounts_in(body: bytes) -> list[PlainAccessConfig]:
    return list(GetBrokerClusterAclConfigResponseBody.decode(body).plain_access_configs or [])
