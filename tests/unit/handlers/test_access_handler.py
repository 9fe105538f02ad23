"""AccessHandler: administrators change and list the accounts of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.protocol.bodies import DataVersion, GetBrokerClusterAclConfigResponseBody
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    Header,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.access import AccessHandler
from rocketpy_broker.security.access_file import AccessStore
from tests.unit.handlers.handler_server import HandlerServer, running
from tests.unit.store.helpers import small_config

PUT = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
DELETE = RequestCode.DELETE_ACL_CONFIG
WHITE = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
LIST = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
VERSION = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
ACCOUNT = CreateAccessConfigRequestHeader(
    access_key="account1", secret_key="12345678", topic_perms="A=PUB, B=SUB", default_group_perm="SUB"
)


def server_at(root: Path, *, has_access: bool = True) -> HandlerServer:
    """Return a server with an access file that has no accounts."""
    store = None
    if has_access:
        path = root / "plain_acl.yml"
        path.write_text("accounts: []\n")
        store = AccessStore(path, clock=lambda: 5)
        store.load()
    config = BrokerConfig(store=small_config(root))
    return HandlerServer(AccessHandler(store, config, address="127.0.0.1:10911"))


async def test_accounts_are_changed_and_listed_without_secrets(tmp_path: Path) -> None:
    """An administrator could not see the accounts, or the listed accounts would contain their secrets."""
    async with running(server_at(tmp_path)) as (client,):
        white = UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs="10.0.0.*, 10.1.0.1")
        for code, header in ((PUT, ACCOUNT), (WHITE, white)):
            assert (await client.call(code, header)).code == ResponseCode.SUCCESS
        found = GetBrokerClusterAclConfigResponseBody.decode((await client.call(LIST)).body)
        assert found.global_white_addrs == ["10.0.0.*", "10.1.0.1"]
        (account,) = found.plain_access_configs or []
        assert (account.access_key, account.secret_key) == ("account1", None)
        assert (account.topic_perms, account.default_group_perm) == (["A=PUB", "B=SUB"], "SUB")
        assert "12345678" in (tmp_path / "plain_acl.yml").read_text()
        fields = (await client.call(VERSION)).ext_fields()
        version = DataVersion.decode(fields["version"].encode())
        assert fields.pop("allAclFileVersion") == f'{{"plain_acl.yml":{fields.pop("version")}}}'
        assert (version.counter, version.timestamp) == (2, 5)
        assert fields == {
            "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "DefaultCluster",
        }  # fmt: skip
        no_white = UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs="")
        delete = DeleteAccessConfigRequestHeader(access_key="account1")
        assert (await client.call(DELETE, delete)).code == ResponseCode.SUCCESS
        assert (await client.call(WHITE, no_white)).code == ResponseCode.SUCCESS
        found = GetBrokerClusterAclConfigResponseBody.decode((await client.call(LIST)).body)
        assert not found.plain_access_configs
        assert not found.global_white_addrs


@pytest.mark.parametrize(
    ("code", "header", "failure", "remark"),
    [
        (
            PUT,
            CreateAccessConfigRequestHeader(access_key="account1", secret_key="short"),
            ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
            "",
        ),
        (
            DELETE,
            DeleteAccessConfigRequestHeader(access_key="unknown"),
            ResponseCode.DELETE_ACL_CONFIG_FAILED,
            "The accesskey[unknown]",
        ),
        (
            WHITE,
            UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs="10.0"),
            ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
            "",
        ),
    ],
)
async def test_an_invalid_change_is_rejected_and_not_written(
    tmp_path: Path, code: RequestCode, header: Header, failure: int, remark: str
) -> None:
    """A broker could not start again with the file that it wrote."""
    async with running(server_at(tmp_path)) as (client,):
        response = await client.call(code, header)
        assert response.code == failure
        assert remark in (response.remark or "")
        assert response.remark
    assert (tmp_path / "plain_acl.yml").read_text() == "accounts: []\n"


@pytest.mark.parametrize(
    ("code", "header", "failure"),
    [
        (PUT, ACCOUNT, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),
        (LIST, None, ResponseCode.SYSTEM_ERROR),
        (VERSION, None, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_without_access_control_every_request_gets_a_response(
    tmp_path: Path, code: RequestCode, header: Header | None, failure: int
) -> None:
    """As with RocketMQ 4.6.0, which sends no response, an administrator's tool would wait for its timeout."""
    async with running(server_at(tmp_path, has_access=False)) as (client,):
        response = await client.call(code, header)
        assert (response.code, response.remark) == (
            failure,
            "access control is off at this broker (aclEnable=false)",
        )
