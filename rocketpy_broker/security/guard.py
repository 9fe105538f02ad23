"""The gate before a server's handlers: who asks, and may they?

A request is admitted from a white address; else it must be signed by an account that has every right it
needs. Refusals are worded as 4.6.0's clients know them: code SYSTEM_ERROR, and the name of Java's exception.

Source: PlainPermissionManager validate of RocketMQ 4.6.0. Differs: each request code needs a right
(`Permission`); there only five need an administrator.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Mapping
from typing import Final

from rocketpy.errors import RocketError
from rocketpy.protocol.acl import ACCESS_KEY, SIGNATURE, signature, signed_content
from rocketpy.protocol.codes import RequestCode, ResponseCode, name_of
from rocketpy.protocol.command import Command
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.config import ListenConfig
from rocketpy_broker.security.access_file import AccessStore
from rocketpy_broker.security.accounts import Account
from rocketpy_broker.security.demands import demands
from rocketpy_broker.security.permissions import Permission
from rocketpy_broker.sweeper import Sweeper

__all__ = ["AccessGuard", "open_access"]

log = logging.getLogger("rocketpy.broker.access")

_JAVA_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
_RELOAD_S: Final = 0.5
"""How often the file is looked at; as often as in 4.6.0."""
_BY_ADMINISTRATORS: Final = frozenset({Permission.ADMIN, Permission.BROKER})


class AccessGuard:
    """Admits or refuses the requests of one server.

    permissions: which right each request code needs. unsigned_timeout_ms: a connection that had no request
    admitted for this long after it was made is closed.
    """

    def __init__(
        self,
        store: AccessStore,
        permissions: Mapping[int, Permission],
        tasks: Tasks,
        *,
        unsigned_timeout_ms: int,
    ) -> None:
        self.store = store
        self._permissions = permissions
        self._unsigned_s = unsigned_timeout_ms / 1000
        self._strangers: dict[Channel, asyncio.TimerHandle] = {}
        self._tasks = tasks
        self._sweeper = Sweeper(tasks)

    def start(self) -> None:
        """Read the rules, and again whenever their file changes. Raises ConfigInvalid."""
        self.store.load()
        self._sweeper.every(_RELOAD_S, self.store.reload_changed)

    def close(self) -> None:
        """Look for changes no more."""
        self._sweeper.close()

    def opened(self, channel: Channel) -> None:
        """A connection was made; it has some time to show who it is."""
        loop = asyncio.get_running_loop()
        self._strangers[channel] = loop.call_later(self._unsigned_s, self._tasks.run, self._too_late, channel)

    def closed(self, channel: Channel) -> None:
        """A connection is gone."""
        timer = self._strangers.pop(channel, None)
        if timer is not None:
            timer.cancel()

    def _too_late(self, channel: Channel) -> None:
        del self._strangers[channel]
        log.warning("closing connection to %s: it has not shown who it is", channel.remote_address)
        channel.close()

    def refusal(self, channel: Channel, request: Command) -> Command | None:
        """The answer that refuses a request, or None when it is admitted."""
        try:
            reason = self._objection(channel, request)
        except RocketError as error:
            reason = str(error)
        if reason is None:
            if channel in self._strangers:
                self.closed(channel)
            return None
        log.info("refusing %s: %s", channel.remote_address, reason)
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{_JAVA_EXCEPTION}: {reason}")

    def _objection(self, channel: Channel, request: Command) -> str | None:
        host = channel.remote_address.rpartition(":")[0]
        rules = self.store.rules
        if rules.is_white(host):
            return None
        fields = request.ext_fields()
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            return "No accessKey is configured"
        account = rules.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key}"
        if account.white.matches(host):
            return None
        wanted = signature(account.secret_key, signed_content(fields, request.body))
        if not hmac.compare_digest(wanted.encode(), fields.get(SIGNATURE, "").encode()):
            return f"Check signature failed for accessKey={access_key}"
        return self._missing_right(account, request, fields)

    def _missing_right(self, account: Account, request: Command, fields: Mapping[str, str]) -> str | None:
        permission = self._permissions.get(request.code, Permission.ADMIN)
        if permission in _BY_ADMINISTRATORS and not account.is_admin:
            code = name_of(RequestCode, request.code)
            return (
                f"Need admin permission for request code={request.code}, "
                f"but accessKey={account.access_key} is not ({code})"
            )
        if not account.is_limited:
            return None
        for demand in demands(request, fields):
            if not demand.right & account.right_to(demand.name, is_group=demand.is_group):
                return f"No default permission for {demand}"
        return None


def open_access(
    listen: ListenConfig, permissions: Mapping[int, Permission], tasks: Tasks
) -> AccessGuard | None:
    """The guard of a server that has access control; not started. tasks: of the server."""
    if listen.acl_file is None:
        return None
    store = AccessStore(listen.acl_file)
    return AccessGuard(store, permissions, tasks, unsigned_timeout_ms=listen.unsigned_timeout_ms)
