"""What broker.conf and namesrv.conf say about whom to serve: address, TLS, access control, limits."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address, ChannelOptions, TlsFiles
from rocketpy_broker.config.model import ListenConfig

_ACL_FILE: Final = "conf/plain_acl.yml"
"""Below RocketMQ's home, unless rocketmq.acl.plain.file says otherwise."""

_FIELD_NAMES: Final = {
    "cert_path": "certPath",
    "key_path": "keyPath",
    "key_password_file": "keyPasswordFile",
    "trust_cert_path": "trustCertPath",
}
_TLS_ONLY: Final = {
    "tls_mode": "tls.server.mode",
    "server_key": "tls.server.keyPath",
    "server_password": "tls.server.keyPassword",
    "server_password_file": "tls.server.keyPasswordFile",
    "server_trust": "tls.server.trustCertPath",
}
"""Settings without a meaning where no TLS is served."""
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


def _files(end: str, values: Mapping[str, Any], **more: Any) -> TlsFiles:
    """The files of one end, server or client. Raises ConfigInvalid naming the key."""
    given = {
        part: values.get(f"{end}_{part}") for part in ("cert", "key", "password", "password_file", "trust")
    }
    if given["password"] is None and given["password_file"] is None:
        given["password"] = os.environ.get(f"ROCKETMQ_TLS_{end.upper()}_KEY_PASSWORD")
    return TlsFiles(
        cert_path=given["cert"],
        key_path=given["key"],
        key_password=given["password"],
        key_password_file=given["password_file"],
        trust_cert_path=given["trust"],
        names={field: f"tls.{end}.{name}" for field, name in _FIELD_NAMES.items()},
        **more,
    )


def listen_config(values: Mapping[str, Any], default_port: int, conf: Path | None) -> ListenConfig:
    """Return where a server is reached. values: those of the group "listen"; conf: the file they are from.

    Raises ConfigInvalid.
    """
    scheme, host, port = values.get("listen") or (None, values.get("host", "127.0.0.1"), None)
    if port is None:
        port = values.get("port", default_port)
    options = _options(values)
    scheme = scheme or ("tls" if options.ssl is not None else "tcp")
    limits = {
        name: values[name] for name in ("unsigned_timeout_ms", "requires_signature_v2") if name in values
    }
    return ListenConfig(
        address=Address(scheme, host, port),
        insecure=values.get("insecure", False),
        acl_file=_acl_file(values, conf) if values.get("acl_enable") else None,
        options=options,
        **limits,
    )


def _options(values: Mapping[str, Any]) -> ChannelOptions:
    limits = {name: values[name] for name in _LIMITS if name in values}
    mode, has_cert = values.get("tls_mode", "enforcing"), "server_cert" in values
    verify_mode = _client_auth(values)
    asking = [key for field, key in _TLS_ONLY.items() if field in values]
    if mode == "disabled" or not (has_cert or asking):
        return ChannelOptions(**limits)
    if not has_cert:  # served without TLS, it would be open to everybody
        raise ConfigInvalid(f"{asking[0]} needs tls.server.certPath and tls.server.keyPath")
    files = _files("server", values, server=True, verify_mode=verify_mode)
    return ChannelOptions(ssl=files, also_plain=mode == "permissive", **limits)


def _client_auth(values: Mapping[str, Any]) -> ssl.VerifyMode:
    """Whether clients show a certificate; one that is not trusted is never let in."""
    has_trust = "server_trust" in values
    text = values.get("tls_client_auth", "require" if has_trust else "none")
    if text != "none" and not has_trust:
        raise ConfigInvalid(f"tls.server.need.client.auth {text} needs tls.server.trustCertPath")
    return _CLIENT_AUTH[text]


_LIMITS: Final = (
    "idle_timeout_ms", "frame_timeout_ms", "max_connections", "max_connections_per_host", "max_unanswered",
    "max_frame_bytes", "max_header_bytes", "write_limit_bytes", "connection_bytes_max", "total_bytes_max",
)  # fmt: skip


def client_files(values: Mapping[str, Any]) -> TlsFiles | None:
    """Return how a broker meets other servers with tls://; None: nothing is said. Raises ConfigInvalid."""
    if not any(f"client_{part}" in values for part in ("cert", "key", "trust")):
        return None
    return _files("client", values)


def _acl_file(values: Mapping[str, Any], conf: Path | None) -> Path:
    """Where the accounts are: as 4.6.0 finds them, else beside the configuration file."""
    home = values.get("home") or os.environ.get("ROCKETMQ_HOME")
    named = values.get("acl_file")
    if home:
        return Path(home, (named or _ACL_FILE).lstrip("/"))  # a leading / means the home there, too
    if named:
        return Path(named)
    if conf is None:
        raise ConfigInvalid("aclEnable needs rocketmq.acl.plain.file or rocketmqHome, to find the accounts")
    return conf.parent / "plain_acl.yml"
