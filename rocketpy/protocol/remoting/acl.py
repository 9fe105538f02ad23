"""Signatures of requests with access keys.

Version 1 is RocketMQ's (QUIRKS 31). It covers the values of all ext fields except the signature, and then the
body. The values are sorted by their names on the wire; in SendMessageRequestHeaderV2 these are ``a`` to
``m``. The signature covers neither the request code nor a time, so a recorded request can be replayed, even
with another code.

Version 2 is an extension for clients and brokers of rocketpy. It adds three ext fields:

| field              | value                                                                     |
|--------------------|---------------------------------------------------------------------------|
| ``SignatureTime``  | time of the signature: ms since 1970                                      |
| ``SignatureNonce`` | ``session-number``: random text per signer, and a counter in hexadecimal  |
| ``SignatureV2``    | HMAC-SHA256 in base64, 44 characters                                      |

It covers ``[code,"language",version,{ext fields}]`` as compact JSON, and then the body. The fields are sorted
by name, without ``SignatureV2``. It does not cover opaque and flag, which a connection sets later. Changing
them can only misdirect the response.

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

from rocketpy.errors import LocalProtocolError
from rocketpy.protocol.codes import VERSION_4_6_0

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a field's name
SIGNATURE: Final = "Signature"
SIGNATURE_V2: Final = "SignatureV2"
SIGNED_AT: Final = "SignatureTime"
NONCE: Final = "SignatureNonce"
SIGNING_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SIGNATURE_V2, SIGNED_AT, NONCE})
"""All ext fields that a signer adds."""
_SESSION_BYTES: Final = 12
_json: Final = msgspec.json.Encoder(order="sorted").encode


def signature(secret_key: bytes, content: bytes) -> str:
    """Return an HMAC-SHA1 in base64, 28 characters."""
    return b2a_base64(hmac.digest(secret_key, content, "sha1"), newline=False).decode("ascii")


def signature_v2(secret_key: bytes, content: bytes) -> str:
    """Return an HMAC-SHA256 in base64, 44 characters."""
    return b2a_base64(hmac.digest(secret_key, content, "sha256"), newline=False).decode("ascii")


def signed_content(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes that version 1 signs. fields: the request's ext fields by their names on the wire.

    Raises LocalProtocolError for text that is not valid Unicode.
    """
    text = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
    try:
        return text.encode() + body
    except UnicodeEncodeError as error:
        raise _not_unicode(error) from error


def signed_content_v2(
    code: int, language: str, version: int, fields: Mapping[str, str], body: bytes
) -> bytes:
    """Return the bytes that version 2 signs. fields, errors: as for `signed_content`."""
    covered = {name: value for name, value in fields.items() if name != SIGNATURE_V2}
    try:
        return _json((code, language, version, covered)) + body
    except UnicodeEncodeError as error:
        raise _not_unicode(error) from error


def signed_template_v2(code: int, language: str, version: int) -> bytes:
    """Return the bytes that version 2 signs, with two placeholders for `%`: ext fields and body.

    The ext fields are JSON without the braces; see `template.fields_template`.
    """
    return _json((code, language, version, msgspec.Raw(b"{%b}"))) + b"%b"


def _not_unicode(error: UnicodeEncodeError) -> LocalProtocolError:
    return LocalProtocolError(f"a request with a text that is not valid Unicode cannot be signed: {error}")


class Signer:
    """Signs the requests of one client with version 1. Its repr does not contain the secret key."""

    __slots__ = ("_secret_key", "fields")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.fields: Final = {ACCESS_KEY: access_key}
        """The ext fields that identify the account, without the signature."""
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
        """Return the ext fields of a request with its signature.

        fields, body, code, language, version: of the request. Version 1 ignores the last three.
        """
        signed = {**fields, **self.fields}
        signed[SIGNATURE] = signature(self._secret_key, signed_content(signed, body))
        return signed

    def signature(self, content: bytes) -> str:
        """Return the signature of the bytes that `signed_content` returns."""
        return signature(self._secret_key, content)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class SignerV2(Signer):
    """Signs with version 2 only, so that no server can force version 1."""

    __slots__ = ("_next", "_now", "_session")

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        security_token: str | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """now: returns seconds since 1970."""
        super().__init__(access_key, secret_key, security_token)
        self._session = secrets.token_urlsafe(_SESSION_BYTES)
        self._next = itertools.count().__next__
        self._now = now

    def next_nonce(self) -> tuple[bytes, int]:
        """Return the nonce and the time (ms) of the next request."""
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
        """Return the ext fields of a request with its signature; see `Signer.sign`."""
        nonce, now_ms = self.next_nonce()
        signed = {**fields, **self.fields, NONCE: nonce.decode(), SIGNED_AT: str(now_ms)}
        signed[SIGNATURE_V2] = self.signature(signed_content_v2(code, language, version, signed, body))
        return signed

    def signature(self, content: bytes) -> str:
        """Return the signature of the bytes that `signed_content_v2` returns."""
        return signature_v2(self._secret_key, content)
