"""Requests that change and list the users and policies of a broker (ACL 2.0).

Source: AdminBrokerProcessor of RocketMQ 5.3.3. Differs: only users of the type Super see passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import AclInfo, UserInfo
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)
from rocketpy.protocol.remoting.acl import ACCESS_KEY
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel
from rocketpy_broker.handlers.base import Rejected, handles
from rocketpy_broker.security.access_file import AccessStore
from rocketpy_broker.security.user_file import UserStore
from rocketpy_broker.security.users import SUPER

_OFF = "users and policies are off at this broker (authenticationEnabled=false)"
_SUPER_ONLY = "The super user can only be {} by super user"


@dataclass(eq=False)
class UserHandler:
    """Manages users and policies."""

    store: AccessStore | UserStore | None
    """None without access control."""

    @handles(RequestCode.AUTH_CREATE_USER)
    def create_user(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_CREATE_USER."""
        store, user = self._to_change(), _user(request)
        self._require_super(request, user.user_type, "create")
        return _changed(request, lambda: store.create_user(user))

    @handles(RequestCode.AUTH_UPDATE_USER)
    def update_user(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_UPDATE_USER."""
        store, user = self._to_change(), _user(request)
        old = store.user(user.username or "")
        for kind in (user.user_type, None if old is None else old.user_type):
            self._require_super(request, kind, "update")
        return _changed(request, lambda: store.update_user(user))

    @handles(RequestCode.AUTH_DELETE_USER)
    def delete_user(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_DELETE_USER. A user who does not exist is deleted successfully, as in 5.3.3."""
        store, name = self._to_change(), _name(request)
        old = store.user(name)
        if old is None:
            return request.reply()
        self._require_super(request, old.user_type, "update")
        return _changed(request, lambda: store.delete_user(name))

    @handles(RequestCode.AUTH_GET_USER)
    def get_user(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_GET_USER. The response has no body if there is no such user."""
        user = self._users().user(_name(request))
        return request.reply(body=b"" if user is None else self._shown([user], request)[0].encode())

    @handles(RequestCode.AUTH_LIST_USER)
    def list_users(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_LIST_USER."""
        found = self._users().users((request.header_as(ListUsersRequestHeader).filter or "").strip())
        return request.reply(body=_encoded(self._shown(found, request)))

    @handles(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL)
    def put_acl(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_CREATE_ACL and AUTH_UPDATE_ACL, which do the same in 5.3.3."""
        store = self._to_change()
        acl = AclInfo.decode(request.body)
        subject = acl.subject or request.header_as(AclRequestHeader).subject or ""
        return _changed(request, lambda: store.put_acl(subject, acl.policies))

    @handles(RequestCode.AUTH_DELETE_ACL)
    def delete_acl(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_DELETE_ACL."""
        store, header = self._to_change(), request.header_as(DeleteAclRequestHeader)
        subject, kind, resource = header.subject or "", header.policy_type, header.resource
        return _changed(request, lambda: store.delete_acl(subject, kind, resource))

    @handles(RequestCode.AUTH_GET_ACL)
    def get_acl(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_GET_ACL. The response has no body if the user has no policies."""
        store = self._users()
        try:
            acl = store.acl(request.header_as(AclRequestHeader).subject or "")
        except ConfigInvalid as error:
            raise Rejected(ResponseCode.NO_PERMISSION, str(error)) from None
        return request.reply(body=b"" if acl is None else acl.encode())

    @handles(RequestCode.AUTH_LIST_ACL)
    def list_acls(self, channel: Channel, request: Command) -> Command:
        """Handle AUTH_LIST_ACL."""
        header = request.header_as(ListAclsRequestHeader)
        subject, resource = ((text or "").strip() for text in (header.subject_filter, header.resource_filter))
        return request.reply(body=_encoded(self._users().acls(subject, resource)))

    # -- internals ----------------------------------------------------------------------------

    def _users(self) -> UserStore:
        """Return the users. Raises Rejected if the broker has none."""
        if not isinstance(self.store, UserStore):
            raise Rejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _OFF)
        return self.store

    def _to_change(self) -> UserStore:
        """Return the users as the file has them now. Raises Rejected, also if it cannot be read."""
        store = self._users()
        try:
            store.before_change()
        except ConfigInvalid as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"the change would replace a file: {error}") from None
        return store

    def _is_super(self, request: Command) -> bool:
        """Whether a user of the type Super signed the request, as the guard has checked."""
        caller = self._users().rules.accounts.get(request.ext_fields().get(ACCESS_KEY, ""))
        return caller is not None and caller.is_admin

    def _require_super(self, request: Command, kind: str | None, verb: str) -> None:
        """Raise Rejected if a request about a user of the type Super is not from one."""
        if (kind or "").strip().lower() == SUPER.lower() and not self._is_super(request):
            raise Rejected(ResponseCode.SYSTEM_ERROR, _SUPER_ONLY.format(verb))

    def _shown(self, users: Sequence[UserInfo], request: Command) -> list[UserInfo]:
        """Return users as the caller may see them."""
        if self._is_super(request):
            return list(users)
        return [msgspec.structs.replace(user, password=None) for user in users]


def _user(request: Command) -> UserInfo:
    return msgspec.structs.replace(UserInfo.decode(request.body), username=_name(request))


def _name(request: Command) -> str:
    name = (request.header_as(UserRequestHeader).username or "").strip()
    if not name:
        raise Rejected(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _changed(request: Command, change: Callable[[], None]) -> Command:
    """Apply a change and respond."""
    try:
        change()
    except ConfigInvalid as error:
        raise Rejected(ResponseCode.NO_PERMISSION, str(error)) from None
    except OSError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"the change cannot be saved: {error}") from None
    return request.reply()


def _encoded(found: Sequence[UserInfo | AclInfo]) -> bytes:
    """Return a list as JSON; nothing for an empty one, as 5.3.3 does."""
    return b"[" + b",".join(each.encode() for each in found) + b"]" if found else b""
