"""RocketMQ's access keys: which bytes of a request are signed, and how (QUIRKS 31).

What is signed are the values of all ext fields but the signature, one after the other in the order of their
names, then the body. The names are those on the wire, so a..m for the short send header. It is not more than
that: neither the request code nor a time is covered.

Source: RocketMQ 4.6 AclClientRPCHook, AclUtils combineRequestContent, AclSigner.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from typing import Final

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "Signer", "signature", "signed_content"]

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a field's name
SIGNATURE: Final = "Signature"


def signature(secret_key: bytes, content: bytes) -> str:
    """HMAC-SHA1 in base64: 28 characters."""
    return b2a_base64(hmac.digest(secret_key, content, "sha1"), newline=False).decode("ascii")


def signed_content(fields: Mapping[str, str], body: bytes) -> bytes:
    """What the signature of a request covers. fields: its ext fields by their names on the wire."""
    return "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode() + body


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

    def sign(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The ext fields of a signed request."""
        signed = {**fields, **self.fields}
        signed[SIGNATURE] = signature(self._secret_key, signed_content(signed, body))
        return signed

    def signature(self, content: bytes) -> str:
        """The signature of content that the caller has put together; see `signed_content`."""
        return signature(self._secret_key, content)

    def __repr__(self) -> str:
        return "Signer(…)"
