"""Checks requests before the handlers of a server see them: authentication and authorization.

A request from an address on the allow list is accepted. Any other must be signed by an account that has all
the rights that the request needs. Accounts and allow lists are those of ACL 1.0. With ACL 2.0, every request
must be signed by a user, whose policies decide.

Source: PlainPermissionManager validate of RocketMQ 4.6.0. Differs: each request code has
allowed callers (`AllowedCaller`); there, only five need an administrator. A client may use a second version
of the signature (`rocketpy.protocol.remoting.acl`), which a server may require.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Final

from rocketpy.errors import RocketError
from rocketpy.protocol.codes import RequestCode, name_of
from rocketpy.protocol.headers import UNIQUE_KEY_QUERY
from rocketpy.protocol.remoting.acl import (
    ACCESS_KEY,
    NONCE,
    SIGNATURE,
    SIGNATURE_V2,
    SIGNED_AT,
    signature,
    signature_v2,
    signed_content,
    signed_content_v2,
)
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.tasks import PeriodicCall, Tasks
from rocketpy.runtime.text import printable
from rocketpy.transport import Channel
from rocketpy_broker.config.model import ListenConfig
from rocketpy_broker.security.access_file import AccessStore
from rocketpy_broker.security.allowed_callers import AllowedCaller
from rocketpy_broker.security.lookups import BrokerLookups
from rocketpy_broker.security.replays import ReplayGuard
from rocketpy_broker.security.required_rights import (
    administrative_rights,
    has_rule,
    required_rights,
)
from rocketpy_broker.security.rights import Principal, RequiredRight, Rules, Subject, may_read_from
from rocketpy_broker.security.user_file import UserStore
from rocketpy_broker.store.files.disk import Clock, system_clock

log = logging.getLogger("rocketpy.broker.access")

_RELOAD_S: Final = 0.5
"""Interval of checks for a changed file; as in 4.6.0."""
_DIGITS_MAX: Final = 15
_TRUSTED: Final = ""
"""Account name of a connection from an address on the allow list."""
_V2_NEEDED: Final = (
    "Signature version 2 is required here (aclSignatureV2Required=true), which RocketMQ's clients do not "
    "have; sign with Credentials(signature_version=2) or ROCKETPY_SIGNATURE_VERSION=2"
)


@dataclass(eq=False)
class AccessGuard:
    """Accepts or rejects the requests of one server. A broker must call `connect` before the first
    request.
    """

    store: AccessStore | UserStore
    callers: Mapping[int, AllowedCaller]
    """Who may use each request code."""
    tasks: Tasks
    _: KW_ONLY
    unsigned_timeout_ms: InitVar[int]
    """A connection without an accepted request is closed after this time."""
    requires_v2: bool = False
    """RocketMQ's signature is rejected."""
    clock: Clock = system_clock

    def __post_init__(self, unsigned_timeout_ms: int) -> None:
        self._replays = ReplayGuard(self.clock())
        self._lookups: BrokerLookups | None = None
        self._accounts: dict[Channel, str] = {}
        """Account that signed the last accepted request of each connection."""
        self._unsigned_s = unsigned_timeout_ms / 1000
        self._unauthenticated: dict[Channel, asyncio.TimerHandle] = {}
        self._reloading: PeriodicCall | None = None

    @property
    def problem(self) -> str:
        """Why the content of the file of rules is not in effect; empty if it is."""
        return self.store.problem

    def connect(self, lookups: BrokerLookups) -> None:
        """Check requests against the records and clients of a broker from now on."""
        self._lookups = lookups

    def start(self) -> None:
        """Read the rules now and whenever their file changes. Raises ConfigInvalid."""
        self.store.load()
        self._reloading = self.tasks.every(_RELOAD_S, self.store.reload_changed, "reload of access rules")

    def close(self) -> None:
        """Stop checking for changes of the file."""
        if self._reloading is not None:
            self._reloading.stop()

    def opened(self, channel: Channel) -> None:
        """Start the timer of a new connection."""
        self._unauthenticated[channel] = self.tasks.call_later(
            self._unsigned_s, self._close_unauthenticated, channel
        )

    def closed(self, channel: Channel) -> None:
        """Forget a closed connection."""
        self._accounts.pop(channel, None)
        self._cancel_timeout(channel)

    def _cancel_timeout(self, channel: Channel) -> None:
        """Cancel the authentication timeout of a connection."""
        timer = self._unauthenticated.pop(channel, None)
        if timer is not None:
            timer.cancel()

    def _close_unauthenticated(self, channel: Channel) -> None:
        del self._unauthenticated[channel]
        log.warning("closing unauthenticated connection from %s", channel.remote_address)
        channel.close()

    # -- requests -----------------------------------------------------------------------------

    def check(self, channel: Channel, request: Command) -> Command | None:
        """Return the response that rejects a request; None if the request is accepted."""
        try:
            reason = self._deny_reason(channel, request)
        except RocketError as error:
            reason = str(error)
        if reason is None:
            if channel in self._unauthenticated:
                self._cancel_timeout(channel)
            return None
        return self._deny(channel, request, reason)

    def _deny(self, channel: Channel, request: Command, reason: str) -> Command:
        log.info("request from %s rejected: %.1000s", channel.remote_address, printable(reason))
        return self.store.rules.rejection(request, reason)

    def _deny_reason(self, channel: Channel, request: Command) -> str | None:
        host = channel.remote_host
        rules: Rules = self.store.rules
        if rules.is_on_allow_list(host):
            self._accounts[channel] = _TRUSTED
            return None
        fields = request.ext_fields()
        access_key = fields.get(ACCESS_KEY)
        account = None if access_key is None else rules.accounts.get(access_key)
        if access_key is None or account is None:
            return rules.why_unknown(access_key)
        if account.is_exempt_at(host):
            self._accounts[channel] = access_key
            return None
        reason = self._signature_problem(account, request, fields) or self._missing_right(
            account, host, request, fields
        )
        if reason is None:
            self._accounts[channel] = access_key
        return reason

    def _signature_problem(
        self, account: Principal, request: Command, fields: Mapping[str, str]
    ) -> str | None:
        if SIGNATURE_V2 in fields:
            return self._signature_v2_problem(account, request, fields)
        if self.requires_v2:
            return _V2_NEEDED
        if _is_signed(account, fields, request.body):
            return None
        if UNIQUE_KEY_QUERY in fields:  # which clients up to 4.9.3 do not sign, and later ones do
            covered = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
            if _is_signed(account, covered, request.body):
                return None
        return f"Check signature failed for accessKey={account.access_key}"

    def _signature_v2_problem(
        self, account: Principal, request: Command, fields: Mapping[str, str]
    ) -> str | None:
        content = signed_content_v2(request.code, request.language, request.version, fields, request.body)
        wanted = signature_v2(account.secret_key, content)
        if not hmac.compare_digest(wanted.encode(), fields[SIGNATURE_V2].encode()):
            return f"Check signature failed for accessKey={account.access_key} (version 2)"
        signed_at = fields.get(SIGNED_AT, "")
        if not (signed_at.isascii() and signed_at.isdigit() and len(signed_at) <= _DIGITS_MAX):
            return f"{SIGNED_AT} is not a time in ms since 1970"
        return self._replays.deny_reason(
            account.access_key, fields.get(NONCE, ""), int(signed_at), self.clock()
        )

    def _missing_right(
        self, account: Principal, host: str, request: Command, fields: Mapping[str, str]
    ) -> str | None:
        if not account.is_limited:
            return None
        caller = self.callers.get(request.code, AllowedCaller.ADMIN)
        needs_admin = caller is not AllowedCaller.CLIENT or not has_rule(request.code)
        wanted: list[RequiredRight] = []
        if needs_admin and not account.is_admin:
            delegated = administrative_rights(request, fields) if self.store.rules.delegates else None
            if delegated is None:
                code = name_of(RequestCode, request.code)
                return (
                    f"Need admin permission for request code={request.code}, "
                    f"but accessKey={account.access_key} is not ({code})"
                )
            wanted = delegated
        return self._first_denied(account, host, [*wanted, *required_rights(request, fields, self._lookups)])

    def _first_denied(self, account: Principal, host: str, wanted: Iterable[RequiredRight]) -> str | None:
        """Return why an account lacks one of these rights; None if it has all of them."""
        for required in wanted:
            if required.kind is Subject.CLIENT:
                owner = None if self._lookups is None else self._lookups.owner_of(required.name)
                if owner not in (None, account.access_key):
                    return f"Another account's connection has the {required}"
            elif required.kind is Subject.REQUESTER:
                if not self._may_reply_to(account, host, required.name):
                    return f"No default permission for {required}"
            elif (reason := account.refusal(required, host)) is not None:
                return reason
        return None

    def _may_reply_to(self, account: Principal, host: str, client_id: str) -> bool:
        """Whether this account may read a topic that the client may send requests to.

        An unknown client is treated as one that may send to all topics.
        """
        requester = None if self._lookups is None else self._lookups.requester(client_id)
        rules: Rules = self.store.rules
        if requester is None or rules.is_on_allow_list(requester.remote_host):
            return may_read_from(account, host, None, "")
        at = requester.remote_host
        other = rules.accounts.get(self.account_of(requester))
        if other is None:
            return False
        return may_read_from(account, host, None if other.is_exempt_at(at) else other, at)

    def deny_if_revoked(self, channel: Channel, request: Command) -> Command | None:
        """Return the response that rejects a held request whose account has lost the rights; else None."""
        try:
            if self.permits(channel, required_rights(request, request.ext_fields(), self._lookups)):
                return None
        except RocketError as error:
            return self._deny(channel, request, str(error))
        return self._deny(channel, request, "The rights of the account have changed")

    # -- rights of connections ----------------------------------------------------------------

    def account_of(self, channel: Channel) -> str:
        """Return the access key of a connection's account.

        Empty for an address on the allow list, and before the first accepted request.
        """
        return self._accounts.get(channel, _TRUSTED)

    def permits(self, channel: Channel, wanted: Iterable[RequiredRight]) -> bool:
        """Whether the account of a connection has all these rights now."""
        host = channel.remote_host
        rules: Rules = self.store.rules
        if rules.is_on_allow_list(host):
            return True
        account = rules.accounts.get(self.account_of(channel))
        if account is None:
            return False
        is_exempt = account.is_exempt_at(host) or not account.is_limited
        return is_exempt or self._first_denied(account, host, wanted) is None


def _is_signed(account: Principal, fields: Mapping[str, str], body: bytes) -> bool:
    """Whether the signature of version 1 covers these fields and the body."""
    wanted = signature(account.secret_key, signed_content(fields, body))
    return hmac.compare_digest(wanted.encode(), fields.get(SIGNATURE, "").encode())


def create_access_guard(
    listen: ListenConfig, callers: Mapping[int, AllowedCaller], tasks: Tasks, cluster: str = ""
) -> AccessGuard | None:
    """Return the guard of a server, not yet started; None without access control.

    cluster: the name of its cluster, to which policies may refer; empty at a name server.
    """
    store: AccessStore | UserStore
    if listen.acl_file is not None:
        store = AccessStore(listen.acl_file)
    elif listen.users is not None:
        store = UserStore(listen.users, cluster)
    else:
        return None
    return AccessGuard(
        store,
        callers,
        tasks,
        unsigned_timeout_ms=listen.unsigned_timeout_ms,
        requires_v2=listen.requires_signature_v2,
    )
