"""Requests that change and list the accounts of a broker with access control.

Source: AdminBrokerProcessor of RocketMQ 4.6.0. Differs: only administrators are admitted, secrets are never
listed, and each request gets a response (there, a broker without aclEnable does not respond to queries).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from rocketpy.errors import RocketError
from rocketpy.protocol.bodies import GetBrokerClusterAclConfigResponseBody, PlainAccessConfig
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.config.model import BrokerConfig
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.security.access_file import AccessStore
from rocketpy_broker.security.user_file import UserStore

_OFF = "access control is off at this broker (aclEnable=false)"
_USERS = "this broker has users and policies (ACL 2.0), not accounts: use createUser, createAcl and the like"


@dataclass(eq=False)
class AccessHandler:
    """Manages accounts."""

    store: AccessStore | UserStore | None
    """None without access control."""
    config: BrokerConfig
    _: KW_ONLY
    address: str
    """As it is registered."""

    @handles(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    def put_account(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_AND_CREATE_ACL_CONFIG."""
        header = request.header_as(CreateAccessConfigRequestHeader)
        account = PlainAccessConfig(
            access_key=header.access_key,
            secret_key=header.secret_key,
            white_remote_address=header.white_remote_address,
            admin=header.admin,
            default_topic_perm=header.default_topic_perm,
            default_group_perm=header.default_group_perm,
            topic_perms=_listed(header.topic_perms),
            group_perms=_listed(header.group_perms),
        )
        return self._change(
            request,
            ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
            lambda store: store.put_account(account),
        )

    @handles(RequestCode.DELETE_ACL_CONFIG)
    def delete_account(self, channel: Channel, request: Command) -> Command:
        """Handle DELETE_ACL_CONFIG."""
        key = request.header_as(DeleteAccessConfigRequestHeader).access_key

        def delete(store: AccessStore) -> str | None:
            if store.delete_account(key):
                return None
            return f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."

        return self._change(request, ResponseCode.DELETE_ACL_CONFIG_FAILED, delete)

    @handles(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def set_white_addresses(self, channel: Channel, request: Command) -> Command:
        """Handle UPDATE_GLOBAL_WHITE_ADDRS_CONFIG."""
        patterns = _listed(request.header_as(UpdateGlobalWhiteAddrsConfigRequestHeader).global_white_addrs)
        return self._change(
            request,
            ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
            lambda store: store.set_white_addresses(patterns or []),
        )

    def _of_accounts(self, failure: ResponseCode = ResponseCode.SYSTEM_ERROR) -> AccessStore:
        """Return the accounts. Raises Rejected if the broker has none."""
        if not isinstance(self.store, AccessStore):
            raise Rejected(failure, _OFF if self.store is None else _USERS)
        return self.store

    def _change(
        self, request: Command, failure: ResponseCode, change: Callable[[AccessStore], str | None]
    ) -> Command:
        """Apply a change and respond. It has failed if `change` raises an error or returns a reason."""
        store = self._of_accounts(failure)
        try:
            store.before_change()
            reason = change(store)
        except (RocketError, OSError) as error:
            reason = str(error)
        return request.reply() if reason is None else request.reply(failure, remark=reason)

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def version(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CLUSTER_ACL_INFO."""
        version = self._of_accounts().version.encode().decode()
        header = GetBrokerAclConfigResponseHeader(
            version=version,
            all_acl_file_version=f'{{"plain_acl.yml":{version}}}',
            broker_name=self.config.name,
            broker_addr=self.address,
            cluster_name=self.config.cluster_name,
        )
        return request.reply(header=header)

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    def listing(self, channel: Channel, request: Command) -> Command:
        """Handle GET_BROKER_CLUSTER_ACL_CONFIG."""
        white, accounts = self._of_accounts().listing()
        body = GetBrokerClusterAclConfigResponseBody(global_white_addrs=white, plain_access_configs=accounts)
        return request.reply(body=body.encode())


def _listed(text: str | None) -> list[str] | None:
    """Return the parts of a list separated by commas; None without any."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return parts or None
