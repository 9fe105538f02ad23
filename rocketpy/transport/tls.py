"""TlsFiles: certificate, key and trusted authorities in files, and texts for TLS errors.

The files are reloaded when they change. New connections use the new content. Unusable files are
reported, and the previous content stays in use.

Source: TlsHelper, FileWatchService of RocketMQ 4.6.0.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocketpy.errors import ConfigInvalid

log: Final = logging.getLogger("rocketpy.transport")

_CHECK_S: Final = 1.0
"""Minimum interval between two checks of the files."""
_FIELDS: Final = ("cert_path", "key_path", "key_password_file", "trust_cert_path")
_UNUSABLE: Final = {
    9: "is not valid yet: check this machine's clock",
    10: "has expired: renew it",
    26: "cannot be used on this side: its extended key usage lacks server or client authentication",
}
"""Reasons why the certificate of this side is unusable, by OpenSSL's number of the verification error."""
_PARTIAL_CHAIN: Final = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_BEGIN_KEY: Final = "PRIVATE KEY-----"


class TlsFiles:
    """A certificate, its key and trusted authorities, in PEM files that may be replaced at any time.

    Args:
        cert_path: The certificate and its chain; optional for clients.
        key_path: The key; None when it is in the same file.
        key_password: The password of an encrypted key.
        key_password_file: A file with that password.
        trust_cert_path: The trusted authorities. If None, a client trusts those of the system, a server none.
        server: Whether this is the server side.
        verify_mode: Whether a server requests a certificate from clients.
        names: The names of these arguments in error texts, such as keys of broker.conf.

    Raises:
        ConfigInvalid: A file cannot be used; the text names the argument and the file.
    """

    def __init__(
        self,
        *,
        cert_path: str | os.PathLike[str] | None = None,
        key_path: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
        key_password_file: str | os.PathLike[str] | None = None,
        trust_cert_path: str | os.PathLike[str] | None = None,
        server: bool = False,
        verify_mode: ssl.VerifyMode = ssl.CERT_NONE,
        names: Mapping[str, str] | None = None,
    ) -> None:
        given = (cert_path, key_path, key_password_file, trust_cert_path)
        self._paths = {
            name: Path(path) for name, path in zip(_FIELDS, given, strict=True) if path is not None
        }
        self._password = key_password
        self._is_server = server
        self.verify_mode: Final = verify_mode if server else ssl.CERT_REQUIRED
        """Whether peers must present a certificate: CERT_REQUIRED, CERT_OPTIONAL or CERT_NONE."""
        self._names = names or {}
        self._signature = self._file_stamps()
        self._changing: object = None
        """Signatures of changed files that are not in use yet."""
        self._checked_at = time.monotonic()
        self._context = self._load()
        self._problem = ""

    def __eq__(self, other: object) -> bool:
        """Whether both mean the same files, so that clients with equal settings share their connections."""
        return self._identity == other._identity if isinstance(other, TlsFiles) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return (tuple(self._paths.items()), self._password, self._is_server, self.verify_mode)

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection, from the last usable content of the files."""
        if time.monotonic() - self._checked_at >= _CHECK_S:
            self.refresh()
        return self._context

    @property
    def problem(self) -> str:
        """Why the current files are not in use; empty when they are."""
        if time.monotonic() - self._checked_at >= _CHECK_S:
            self.refresh()
        return self._problem

    def refresh(self) -> None:
        """Reload changed files, once two consecutive checks found the same content.

        Certificate and key are often written one after the other. Unusable files are loaded again at each
        check: a certificate may become valid, or a key readable.
        """
        self._checked_at = time.monotonic()
        found = self._file_stamps()
        if found == self._signature and not self._problem:
            self._changing = None
        elif found != self._changing:
            self._changing = found
        else:
            self._signature, self._changing = found, None
            self._reload()

    def _reload(self) -> None:
        shown = ", ".join(map(str, self._paths.values()))
        try:
            self._context = self._load()
        except (ConfigInvalid, OSError, ValueError) as error:  # the files may change during the read
            if str(error) != self._problem:
                log.error("TLS: new connections keep the previous certificates: %s", error)
            self._problem = str(error)
        else:
            self._problem = ""
            log.warning("TLS: new connections use the new content of %s", shown)

    def _file_stamps(self) -> tuple[object, ...]:
        return tuple(map(file_stamp, self._paths.values()))

    # -- loading ------------------------------------------------------------------------------

    def _load(self) -> ssl.SSLContext:
        if self._is_server:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._load_trust(context)
            context.verify_mode = self.verify_mode
        elif "trust_cert_path" in self._paths:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._load_trust(context)
        else:
            context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if "cert_path" in self._paths:
            self._load_own(context)
        elif "key_path" in self._paths:
            raise ConfigInvalid(
                f"{self._named('key_path')} needs {self._name('cert_path')}, which is not set"
            )
        return context

    def _load_trust(self, context: ssl.SSLContext) -> None:
        if "trust_cert_path" not in self._paths:
            return
        self._read("trust_cert_path", _BEGIN, "certificate")
        try:
            context.load_verify_locations(self._paths["trust_cert_path"])
        except ssl.SSLError as error:
            raise self._invalid("trust_cert_path", f"has no certificate that can be read: {error}") from None
        ends = [str(authority["notAfter"]) for authority in context.get_ca_certs()]
        if ends and all(ssl.cert_time_to_seconds(end) < time.time() for end in ends):
            raise self._invalid(
                "trust_cert_path", f"has only certificates that expired, the last at {max(ends)}: replace it"
            )

    def _load_own(self, context: ssl.SSLContext) -> None:
        key = "key_path" if "key_path" in self._paths else "cert_path"
        self._read("cert_path", _BEGIN, "certificate")
        self._read(key, _BEGIN_KEY, "private key")
        is_encrypted = False

        def password() -> str:
            nonlocal is_encrypted
            is_encrypted = True
            return self._password_of(key)

        try:
            context.load_cert_chain(self._paths["cert_path"], self._paths[key], password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                cert = self._named("cert_path")
                raise ConfigInvalid(
                    f"{self._named(key)} is not the key of the certificate in {cert}"
                ) from None
            if is_encrypted:
                raise self._invalid(key, f"cannot be decrypted with the given password: {error}") from None
            raise self._invalid("cert_path", f"and {self._named(key)} cannot be used: {error}") from None
        except ValueError as error:  # the password is too long for OpenSSL
            raise self._invalid(key, f"cannot be decrypted with the given password: {error}") from None
        self._verify_own(key)

    def _password_of(self, key: str) -> str:
        if self._password is not None:
            return self._password
        if "key_password_file" not in self._paths:
            raise self._invalid(
                key,
                f"is encrypted: set {self._name('key_password_file')} to a file with its password",
            )
        return self._read("key_password_file", "", "").rstrip("\r\n")

    def _verify_own(self, key: str) -> None:
        """Verify the certificate of this side as a peer would, with a TLS handshake in memory."""
        mine = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        peer.check_hostname = False
        verifier = peer if self._is_server else mine
        other = mine if self._is_server else peer
        other.verify_mode = ssl.CERT_NONE
        verifier.verify_mode = ssl.CERT_REQUIRED
        verifier.verify_flags |= _PARTIAL_CHAIN
        verifier.load_verify_locations(cadata=_first_certificate(self._paths["cert_path"]))
        for context in (mine, peer):
            context.load_cert_chain(
                self._paths["cert_path"], self._paths[key], lambda: self._password_of(key)
            )
        try:
            _do_handshake(mine, peer)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _UNUSABLE:
                raise self._invalid(
                    "cert_path", f"has a certificate that {_UNUSABLE[error.verify_code]}"
                ) from None
        except ssl.SSLError as error:
            raise self._invalid("cert_path", f"cannot be used: {error}") from None

    def _read(self, name: str, begin: str, what: str) -> str:
        try:
            text = self._paths[name].read_text("utf-8", "replace")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise self._invalid(name, f"cannot be read: {reason}") from None
        if begin not in text:
            raise self._invalid(name, f"has no {what} in PEM format")
        return text

    def _name(self, field: str) -> str:
        return self._names.get(field, field)

    def _named(self, field: str) -> str:
        return f"{self._name(field)} {self._paths[field]}"

    def _invalid(self, field: str, problem: str) -> ConfigInvalid:
        return ConfigInvalid(f"{self._named(field)} {problem}")


Tls = ssl.SSLContext | TlsFiles
"""The TLS configuration of one side of connections."""


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return the context for a new connection."""
    return tls.context if isinstance(tls, TlsFiles) else tls


def file_stamp(path: Path) -> object:
    """Return a value that differs after a change of the file; None for a file that cannot be found."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _first_certificate(path: Path) -> str:
    """Return the first certificate in a file: that of this side, before those of its chain."""
    text = path.read_text("ascii", "replace")
    return text[text.index(_BEGIN) : text.index(_END) + len(_END)] + "\n"


def _do_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Do a TLS handshake between two contexts in memory. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


# -- peers ------------------------------------------------------------------------------------


def certificate_names(transport: asyncio.BaseTransport) -> frozenset[str]:
    """Return the names in the verified certificate of the peer, in lower case; empty without one.

    These are the host names and IP addresses in subjectAltName, or the common name if it has none of them.
    """
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    alternatives = certificate.get("subjectAltName", ())
    names = [name for kind, name in alternatives if kind in ("DNS", "IP Address")]
    if not names:
        pairs = (pair for part in certificate.get("subject", ()) for pair in part)
        names = [value for kind, value in pairs if kind == "commonName"]
    return frozenset(name.lower() for name in names)


_WITHOUT_AUTHORITY: Final = (18, 19, 20, 21)
"""OpenSSL's verification errors of certificates that are self-signed or signed by an unknown authority."""
_UNTRUSTED: Final = "it is not signed by a trusted authority"
_NO_TLS: Final = "the peer does not speak TLS"
_NO_CLIENT_CERTIFICATE: Final = (
    "the server requires a client certificate: set cert_path and key_path of TlsFiles"
)
_NOT_TRUSTED: Final = "the peer does not trust the certificate of this side"
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client presented no certificate, and one is required",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NO_CLIENT_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": f"{_NOT_TRUSTED}: its authority is unknown to the peer",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this side has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _NOT_TRUSTED,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer rejected the handshake: it may require a client certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not speak this version of TLS",
}


_NO_RESPONSE: Final = (
    " before any response: the peer may require a client certificate, or not trust the given one; see its log"
)
"""With TLS 1.3 a client gets the reason only after its first request, and often not at all."""


def ending_hint(transport: asyncio.BaseTransport | None) -> str:
    """Return a hint for the error of a connection that ended before any response; empty without TLS."""
    is_tls = transport is not None and transport.get_extra_info("ssl_object") is not None
    return _NO_RESPONSE if is_tls else ""


def tls_reason(error: BaseException) -> str:
    """Return why TLS with a peer failed; for other errors their text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _UNTRUSTED if error.verify_code in _WITHOUT_AUTHORITY else error.verify_message
        return f"the peer's certificate was rejected: {why}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(getattr(error, "reason", None) or "", "") or error.strerror or str(error)
    return str(error) or type(error).__name__
