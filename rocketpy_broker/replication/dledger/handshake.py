"""How a peer shows that it belongs to a group with a secret, before its first request on a connection.

====  =====================  ==================================================
step  from                   remoting frame, its fields
====  =====================  ==================================================
1     who connected          request 52001: group, localId, remoteId, nonce
2     who was connected to   answer: nonce
3     who connected          request 52002: proof
4     who was connected to   answer: proof
====  =====================  ==================================================

Each proof is an HMAC-SHA256 with the secret over the side, the group, both ids and both nonces. So it is
worth nothing on another connection, for another peer, in another group, or in the other direction. RocketMQ's
peers do not know these requests, and answer that: they cannot join. See decision 0019.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import IntEnum
from typing import Final, NamedTuple

from rocketpy.errors import RemoteProtocolError, RequestTimeout, RocketError
from rocketpy.protocol.codes import ResponseCode
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Channel

_TIMEOUT_MS: Final = 1500
"""For each of the two answers."""
_NONCE_BYTES: Final = 16
_NONCE_MAX: Final = 64
_FIELDS: Final = ("group", "localId", "remoteId", "nonce")


class HandshakeCode(IntEnum):
    """Request codes of ours on a peer's port; neither DLedger nor RocketMQ has them."""

    HELLO = 52001
    PROVE = 52002


class PeerRefused(RocketError):
    """The other end does not show that it belongs to the group."""


class HandshakeContext(NamedTuple):
    """What both ends have context before either proves anything.

    caller, callee: ids of who connected and of who was connected to.
    """

    group: str
    caller: str
    callee: str
    caller_nonce: str
    callee_nonce: str

    @classmethod
    def read(cls, request: Command) -> HandshakeContext:
        """What a HELLO says, with a new nonce for the answer. Raises RemoteProtocolError."""
        fields = request.ext_fields()
        group, caller, callee, nonce = (fields.get(name, "") for name in _FIELDS)
        if not (group and caller and callee and 0 < len(nonce) <= _NONCE_MAX):
            raise RemoteProtocolError("a handshake without group, ids or a nonce")
        return cls(group, caller, callee, nonce, new_nonce())


def new_nonce() -> str:
    """A text that was never used before."""
    return secrets.token_hex(_NONCE_BYTES)


def proof(secret: str, side: str, context: HandshakeContext) -> str:
    """Return what only who knows the secret can say. side: "caller" or "callee", whoever says it."""
    # The length of each part is there, too: no two introductions have the same text.
    text = "".join(f"{len(part)}:{part}" for part in (side, *context))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


async def authenticate(channel: Channel, secret: str, group: str, self_id: str, peer: str) -> None:
    """Show a peer that was connected to who this one is, and see that it knows the secret, too.

    Raises PeerRefused, ConnectionLost; the channel must not be used then.
    """
    nonce = new_nonce()
    hello = Command.request(HandshakeCode.HELLO)
    hello.ext = dict(zip(_FIELDS, (group, self_id, peer, nonce), strict=True))
    response = await _request(channel, hello)
    context = HandshakeContext(group, self_id, peer, nonce, response.get("nonce", ""))
    prove = Command.request(HandshakeCode.PROVE)
    prove.ext = {"proof": proof(secret, "caller", context)}
    response = await _request(channel, prove)
    expected = proof(secret, "callee", context)
    if not hmac.compare_digest(response.get("proof", "").encode(), expected.encode()):
        raise PeerRefused(f"peer {peer} does not know the secret of this group (dLegerSecret)")


async def _request(channel: Channel, request: Command) -> dict[str, str]:
    try:
        response = await channel.request(request, _TIMEOUT_MS)
    except RequestTimeout:
        raise PeerRefused(
            f"it does not answer the handshake that dLegerSecret asks for within {_TIMEOUT_MS} ms"
        ) from None
    if response.code != ResponseCode.SUCCESS:
        if response.code == ResponseCode.NO_PERMISSION:
            raise PeerRefused(f"it refuses the handshake that dLegerSecret asks for: {response.remark}")
        raise PeerRefused(
            "it does not know the handshake that dLegerSecret asks for: it is RocketMQ's, or has no secret"
        )
    return response.ext_fields()
