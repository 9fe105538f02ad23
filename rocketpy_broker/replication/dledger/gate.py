"""Who may ask on a peer's port, where a group has a secret or names the certificates of its peers."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Final

from rocketpy.errors import RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.runtime.rate_limited_log import RateLimitedLog
from rocketpy.runtime.tasks import Tasks
from rocketpy.transport import Channel
from rocketpy_broker.replication.dledger.core.messages import (
    HeartBeatRequest,
    PushEntryRequest,
    RaftMessage,
    VoteRequest,
)
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from rocketpy_broker.replication.dledger.handshake import HandshakeCode, HandshakeContext, PeerRefused, proof

log = logging.getLogger("rocketpy.broker.dledger")

_HANDSHAKE_S: Final = 3.0
_UNAUTHENTICATED_MAX: Final = 64
_LEADER_CLAIMS: Final = (VoteRequest, HeartBeatRequest, PushEntryRequest)
"""What says of its sender that it leads, or wants to."""


class PeerAuthenticator:
    """Admits the peers of a group and nobody else.

    names: of the certificates that peers show; empty: any. tasks: of the peer.
    """

    def __init__(self, settings: RaftSettings, names: frozenset[str], tasks: Tasks) -> None:
        self._settings = settings
        self._names = names
        self._tasks = tasks
        self._unauthenticated: dict[Channel, asyncio.TimerHandle] = {}
        """Oldest first, with what closes them."""
        self._contexts: dict[Channel, HandshakeContext] = {}
        self._authenticated: dict[Channel, str] = {}
        """With the id of the peer; empty where certificates alone are asked for."""
        self._log = RateLimitedLog(log)

    def opened(self, channel: Channel) -> None:
        """A connection was made; it has some time to show who it is."""
        if self._names and not self._names & channel.certificate_names():
            shown = ", ".join(sorted(channel.certificate_names())) or "no name"
            self._reject(channel, f"its certificate has {shown}, which is not in replicaCertNames")
        elif not self._settings.secret:
            self._authenticated[channel] = ""
        else:
            if len(self._unauthenticated) >= _UNAUTHENTICATED_MAX:
                self._reject(next(iter(self._unauthenticated)), "others wait for their handshake, too")
            later = asyncio.get_running_loop().call_later
            self._unauthenticated[channel] = later(_HANDSHAKE_S, self._tasks.run, self._on_timeout, channel)

    def closed(self, channel: Channel) -> None:
        """A connection is gone."""
        self._forget(channel)
        self._authenticated.pop(channel, None)

    def _forget(self, channel: Channel) -> None:
        timer = self._unauthenticated.pop(channel, None)
        if timer is not None:
            timer.cancel()
        self._contexts.pop(channel, None)

    def _on_timeout(self, channel: Channel) -> None:
        self._reject(channel, f"no handshake within {_HANDSHAKE_S:.0f} s")

    def _reject(self, channel: Channel, reason: str) -> None:
        text = "closing the connection from %s to the port of peer %s: %s"
        self._log.warning(
            f"{channel.remote_host} {reason}", text, channel.remote_address, self._settings.self_id, reason
        )
        self.closed(channel)
        asyncio.get_running_loop().call_soon(self._tasks.run, channel.close)  # once it is answered

    def handshake(self, channel: Channel, request: Command) -> Command | None:
        """Answer a request of a connection that has still to show who it is; None: it has done so.

        The connection is closed when it asks for anything else, or does not know the secret.
        """
        if channel in self._authenticated:
            return None
        try:
            if channel not in self._unauthenticated:
                raise PeerRefused("the connection is being closed")
            if request.code == HandshakeCode.HELLO and channel not in self._contexts:
                return self._on_hello(channel, request)
            if request.code == HandshakeCode.PROVE and channel in self._contexts:
                return self._on_proof(channel, request)
            raise PeerRefused(
                f"request {request.code} without the handshake that dLegerSecret asks for, which RocketMQ's "
                "peers do not know"
            )
        except RocketError as error:
            self._reject(channel, str(error))
            return request.reply(ResponseCode.NO_PERMISSION, remark=str(error))

    def _on_hello(self, channel: Channel, request: Command) -> Command:
        context = HandshakeContext.read(request)
        settings = self._settings
        if context.group != settings.group or context.callee != settings.self_id:
            raise PeerRefused(f"it looks for peer {context.callee!r} of group {context.group!r}")
        if context.caller not in settings.peers:
            raise PeerRefused(f"{context.caller!r} is not a peer of this group")
        self._contexts[channel] = context
        response = request.reply(ResponseCode.SUCCESS)
        response.ext = {"nonce": context.callee_nonce}
        return response

    def _on_proof(self, channel: Channel, request: Command) -> Command:
        context, secret = self._contexts[channel], self._settings.secret
        given = request.ext_fields().get("proof", "")
        if not hmac.compare_digest(given.encode(), proof(secret, "caller", context).encode()):
            raise PeerRefused("it does not know the secret of this group (dLegerSecret)")
        self._forget(channel)
        self._authenticated[channel] = context.caller
        response = request.reply(ResponseCode.SUCCESS)
        response.ext = {"proof": proof(secret, "callee", context)}
        return response

    def check(self, channel: Channel, message: RaftMessage) -> None:
        """See that a peer speaks for itself. Raises PeerRefused, and closes the connection."""
        peer = self._authenticated[channel]
        if not peer:
            return
        leads = message.leader_id if isinstance(message, _LEADER_CLAIMS) else peer
        if message.local_id not in (None, peer) or leads != peer:
            reason = f"peer {peer} speaks for another one: {type(message).__name__} of {leads}"
            self._reject(channel, reason)
            raise PeerRefused(reason)
