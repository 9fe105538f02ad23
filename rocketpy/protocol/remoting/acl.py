"""Access keys: which bytes of a request are signed, and how.

Version 1 is RocketMQ's (QUIRKS 31). What is signed are the values of all ext fields but the signature, one
after the other in the order of their names, then the body. The names are those on the wire, so a..m for the
short send header. Neither the request code nor a time is covered.

Version 2 is ours and for both ends ours; RocketMQ's brokers take none of it. It adds three ext fields:

| field            | value                                                                       |
|------------------|-----------------------------------------------------------------------------|
| ``SignatureTime``  | when it was signed: ms since 1970                                         |
| ``SignatureNonce`` | ``session-number``: a random text of the signer, and hexadecimal 0, 1, 2... |
| ``SignatureV2``    | HMAC-SHA256 in base64, 44 characters                                      |

It covers ``[code,"language",version,{ext fields}]`` as JSON without blanks, the fields but ``SignatureV2`` in
the order of their names, and then the body. The opaque and the flag for oneway requests are not covered: a
connection sets them later, and whoever changes them only misdirects the answer.

Source: RocketMQ 4.6 AclClientRPCHook, AclUtils combineRequestContent, AclSigner.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import time
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from rocketpy.protocol.codes import VERSION_4_6_0

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a field's name
SIGNATURE: Final = "Signature"
SIGNATURE_V2: Final = "SignatureV2"
SIGNED_AT: Final = "SignatureTime"
NONCE: Final = "SignatureNonce"
SIGNING_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SIGNATURE_V2, SIGNED_AT, NONCE})
"""All ext fields that say who signed a request."""
_SESSION_BYTES: Final = 12
_json: Final = msgspec.json.Encoder(order="sorted").encode


def signature(secret_key: bytes, content: bytes) -> str:
    """HMAC-SHA1 in base64: 28 characters."""
    return b2a_base64(hmac.digest(secret_key, content, "sha1"), newline=False).decode("ascii")


def signature_v2(secret_key: bytes, content: bytes) -> str:
    """HMAC-SHA256 in base64: 44 characters."""
    return b2a_base64(hmac.digest(secret_key, content, "sha256"), newline=False).decode("ascii")


def signed_content(fields: Mapping[str, str], body: bytes) -> bytes:
    """What the signature of a request covers. fields: its ext fields by their names on the wire."""
    return "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode() + body


def signed_content_v2(
    code: int, language: str, version: int, fields: Mapping[str, str], body: bytes
) -> bytes:
    """What version 2 of the signature covers. fields: as for `signed_content`."""
    covered = {name: value for name, value in fields.items() if name != SIGNATURE_V2}
    return _json((code, language, version, covered)) + body


class Signer:
    """Signs the requests of one client. Its text never shows a key.

    fields: those that say who signs, without the signature.
    """

    __slots__ = ("_secret_key", "fields")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.fields: Final = {ACCESS_KEY: access_key}
        if security_token is not None:
            self.fields[SECURITY_TOKEN] = security_token
        self._secret_key = secret_key.encode()

    def sign(
        self,
        fields: Mapping[str, str],
        body: bytes,
        *,
        code: int = 0,
        language: str = "PYTHON",
        version: int = VERSION_4_6_0,
    ) -> dict[str, str]:
        """The ext fields of a signed request.

        code, language, version: of the command; version 2 covers them.
        """
        signed = {**fields, **self.fields}
        signed[SIGNATURE] = signature(self._secret_key, signed_content(signed, body))
        return signed

    def signature(self, content: bytes) -> str:
        """The signature of content that the caller has put together; see `signed_content`."""
        return signature(self._secret_key, content)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class SignerV2(Signer):
    """Signs with version 2 only, so that nobody can make a server fall back to version 1."""

    __slots__ = ("_next", "_now", "_session")

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        security_token: str | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """now: seconds since 1970."""
        super().__init__(access_key, secret_key, security_token)
        self._session = secrets.token_urlsafe(_SESSION_BYTES)
        self._next = itertools.count().__next__
        self._now = now

    def stamp(self) -> tuple[bytes, int]:
        """The nonce and the time (ms) of one more request."""
        return f"{self._session}-{self._next():x}".encode(), int(self._now() * 1000)

    def sign(
        self,
        fields: Mapping[str, str],
        body: bytes,
        *,
        code: int = 0,
        language: str = "PYTHON",
        version: int = VERSION_4_6_0,
    ) -> dict[str, str]:
        """The ext fields of a signed request."""
        nonce, now_ms = self.stamp()
        signed = {**fields, **self.fields, NONCE: nonce.decode(), SIGNED_AT: str(now_ms)}
        signed[SIGNATURE_V2] = self.signature(signed_content_v2(code, language, version, signed, body))
        return signed

    def signature(self, content: bytes) -> str:
        """The signature of content that the caller has put together; see `signed_content_v2`."""
        return signature_v2(self._secret_key, content)
