"""Authentication between the peers of a group that has a secret or names its peers' certificates.

Before its first request on a connection, a peer with a secret does this handshake:

====  ================  ==================================================
step  from              remoting frame, its fields
====  ================  ==================================================
1     caller            request 52001: group, localId, remoteId, nonce
2     callee            response: nonce
3     caller            request 52002: proof
4     callee            response: proof
====  ================  ==================================================

Each proof is an HMAC-SHA256 with the secret over the side, the group, both ids and both nonces. A proof is
therefore useless on another connection, for another peer, in another group, or in the other direction.
RocketMQ's peers reject these requests, so they cannot join such a group. See decision 0019.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from enum import IntEnum
from typing import Final, NamedTuple

from rocketpy.errors import RemoteProtocolError, RequestTimeout, RocketError
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
from rocketpy_broker.replication.pending_connections import PendingConnections

log = logging.getLogger("rocketpy.broker.dledger")

_TIMEOUT_MS: Final = 1500
"""Time in which the caller must receive each of the two responses."""
_HANDSHAKE_S: Final = 3.0
"""Time in which a caller must have finished the handshake."""
_PENDING_MAX: Final = 64
_NONCE_BYTES: Final = 16
_NONCE_MAX: Final = 64
_FIELDS: Final = ("group", "localId", "remoteId", "nonce")
_LEADER_CLAIMS: Final = (VoteRequest, HeartBeatRequest, PushEntryRequest)
"""Messages whose sender leads the group, or wants to."""


class HandshakeCode(IntEnum):
    """Request codes of the handshake. Neither DLedger nor RocketMQ uses them."""

    HELLO = 52001
    PROVE = 52002


class PeerRefused(RocketError):
    """The other side has not proved that it belongs to the group."""


class HandshakeContext(NamedTuple):
    """The values that both sides send before their proofs, which cover them."""

    group: str
    caller: str
    """Id of the peer that connected."""
    callee: str
    """Id of the peer that it connected to."""
    caller_nonce: str
    callee_nonce: str

    @classmethod
    def read(cls, request: Command) -> HandshakeContext:
        """Return the context of a HELLO request, with a new callee nonce. Raises RemoteProtocolError."""
        fields = request.ext_fields()
        group, caller, callee, nonce = (fields.get(name, "") for name in _FIELDS)
        if not (group and caller and callee and 0 < len(nonce) <= _NONCE_MAX):
            raise RemoteProtocolError("handshake without group, ids or nonce")
        return cls(group, caller, callee, nonce, secrets.token_hex(_NONCE_BYTES))

    def proof(self, secret: str, side: str) -> str:
        """Return the proof that a side ("caller" or "callee") sends."""
        # The length of each part is included, so that no two contexts have the same text.
        text = "".join(f"{len(part)}:{part}" for part in (side, *self))
        return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, given: str, secret: str, side: str) -> bool:
        """Check the proof that the other end sent, in constant time."""
        return hmac.compare_digest(given.encode(), self.proof(secret, side).encode())


# -- the calling side -----------------------------------------------------------------------------


async def authenticate(channel: Channel, secret: str, group: str, self_id: str, peer: str) -> None:
    """Do the handshake on a new connection to a peer.

    Raises PeerRefused, ConnectionLost; the caller must then close the channel.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)
    hello = Command.request(HandshakeCode.HELLO)
    hello.ext = dict(zip(_FIELDS, (group, self_id, peer, nonce), strict=True))
    fields = await _request(channel, hello)
    context = HandshakeContext(group, self_id, peer, nonce, fields.get("nonce", ""))
    prove = Command.request(HandshakeCode.PROVE)
    prove.ext = {"proof": context.proof(secret, "caller")}
    fields = await _request(channel, prove)
    if not context.is_proof(fields.get("proof", ""), secret, "callee"):
        raise PeerRefused(f"peer {peer} does not know the secret of this group (dLegerSecret)")


async def _request(channel: Channel, request: Command) -> dict[str, str]:
    try:
        response = await channel.request(request, _TIMEOUT_MS)
    except RequestTimeout:
        raise PeerRefused(
            f"the peer did not respond within {_TIMEOUT_MS} ms to the handshake that dLegerSecret requires"
        ) from None
    if response.code == ResponseCode.SUCCESS:
        return response.ext_fields()
    if response.code == ResponseCode.NO_PERMISSION:
        raise PeerRefused(f"the peer rejects the handshake that dLegerSecret requires: {response.remark}")
    raise PeerRefused(
        "the peer does not know the handshake that dLegerSecret requires: it is RocketMQ's, or has no secret"
    )


# -- the called side ------------------------------------------------------------------------------


class PeerAuthenticator:
    """Admits only the peers of a group to a peer's port.

    allowed_names: names in certificates of peers; empty allows any certificate. tasks: of the peer.
    """

    def __init__(self, settings: RaftSettings, allowed_names: frozenset[str], tasks: Tasks) -> None:
        self._settings = settings
        self._allowed_names = allowed_names
        self._tasks = tasks
        self._pending = PendingConnections[Channel](_PENDING_MAX, self._evict)
        self._timers: dict[Channel, asyncio.TimerHandle] = {}
        self._contexts: dict[Channel, HandshakeContext] = {}
        """Handshakes after step 2."""
        self._authenticated: dict[Channel, str] = {}
        """Id of the peer at each connection; empty where only certificates are checked."""
        self._log = RateLimitedLog(log)

    def opened(self, channel: Channel) -> None:
        """Check the certificate of a new connection, and give it time for the handshake."""
        if self._allowed_names and not self._allowed_names & channel.certificate_names():
            shown = ", ".join(sorted(channel.certificate_names())) or "no name"
            self._reject(channel, f"its certificate has {shown}, which is not in replicaCertNames")
        elif not self._settings.secret:
            self._authenticated[channel] = ""
        else:
            self._pending.add(channel, channel.remote_host)
            self._timers[channel] = self._tasks.call_later(_HANDSHAKE_S, self._on_timeout, channel)

    def closed(self, channel: Channel) -> None:
        """Forget a connection."""
        self._end_handshake(channel)
        self._authenticated.pop(channel, None)

    def _end_handshake(self, channel: Channel) -> None:
        self._pending.discard(channel)
        self._contexts.pop(channel, None)
        if (timer := self._timers.pop(channel, None)) is not None:
            timer.cancel()

    def _on_timeout(self, channel: Channel) -> None:
        self._reject(channel, f"no handshake within {_HANDSHAKE_S:.0f} s")

    def _evict(self, channel: Channel, host: str, count: int) -> None:
        self._reject(channel, f"{host} has {count} connections without a handshake")

    def _reject(self, channel: Channel, reason: str) -> None:
        text = "closing the connection from %s to the port of peer %s: %s"
        self._log.warning(channel.remote_host, text, channel.remote_address, self._settings.self_id, reason)
        self.closed(channel)
        # Close it later: the response to the current request must be written first.
        self._tasks.call_soon(channel.close)

    def is_authenticated(self, channel: Channel) -> bool:
        """Whether the peer at a connection has proved that it belongs to the group."""
        return channel in self._authenticated

    def handshake(self, channel: Channel, request: Command) -> Command | None:
        """Return the response to a request on a connection that has not authenticated.

        A wrong proof closes the connection. Any other request than the next one of the handshake also closes
        it, and gets no response.
        """
        if channel not in self._pending:
            return None
        is_proof = channel in self._contexts
        if request.code != (HandshakeCode.PROVE if is_proof else HandshakeCode.HELLO):
            self._reject(
                channel,
                f"request {request.code} without the handshake that dLegerSecret requires, which RocketMQ's "
                "peers do not know",
            )
            return None
        try:
            return self._on_proof(channel, request) if is_proof else self._on_hello(channel, request)
        except RocketError as error:
            self._reject(channel, str(error))
            return request.reply(ResponseCode.NO_PERMISSION, remark=str(error))

    def _on_hello(self, channel: Channel, request: Command) -> Command:
        context = HandshakeContext.read(request)
        settings = self._settings
        if context.group != settings.group or context.callee != settings.self_id:
            raise PeerRefused(
                f"the caller wants peer {context.callee!r} of group {context.group!r}, but this is another "
                "peer; check dLegerGroup and dLegerPeers"
            )
        if context.caller not in settings.peers:
            raise PeerRefused(f"{context.caller!r} is not a peer of this group")
        self._contexts[channel] = context
        response = request.reply(ResponseCode.SUCCESS)
        response.ext = {"nonce": context.callee_nonce}
        return response

    def _on_proof(self, channel: Channel, request: Command) -> Command:
        context, secret = self._contexts[channel], self._settings.secret
        if not context.is_proof(request.ext_fields().get("proof", ""), secret, "caller"):
            raise PeerRefused("the caller does not know the secret of this group (dLegerSecret)")
        self._end_handshake(channel)
        self._authenticated[channel] = context.caller
        response = request.reply(ResponseCode.SUCCESS)
        response.ext = {"proof": context.proof(secret, "callee")}
        return response

    def check(self, channel: Channel, message: RaftMessage) -> None:
        """Check that a peer sends messages in its own name only.

        Raises PeerRefused, and closes the connection.
        """
        peer = self._authenticated[channel]
        if not peer:
            return
        sender = peer if message.local_id is None else message.local_id
        leader = message.leader_id if isinstance(message, _LEADER_CLAIMS) else peer
        if sender != peer or leader != peer:
            claimed = leader if sender == peer else sender
            reason = f"peer {peer} sent a {type(message).__name__} in the name of {claimed}"
            self._reject(channel, reason)
            raise PeerRefused(reason)
