"""Settings of a listening port in broker.conf and namesrv.conf: address, TLS, access control, limits."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from rocketpy.config import Credentials
from rocketpy.errors import ConfigInvalid
from rocketpy.protocol.bodies import UserInfo
from rocketpy.transport import Address, ChannelOptions, TlsFiles
from rocketpy_broker.config.model import ListenConfig, UsersConfig

_ACL_FILE: Final = "conf/plain_acl.yml"
"""Path below RocketMQ's home directory, unless rocketmq.acl.plain.file is set."""

_FILE_FIELDS: Final = {
    "cert": ("cert_path", "certPath"),
    "key": ("key_path", "keyPath"),
    "password": ("key_password", "keyPassword"),
    "password_file": ("key_password_file", "keyPasswordFile"),
    "trust": ("trust_cert_path", "trustCertPath"),
}
"""Part of a field of the group "listen" -> field of TlsFiles, and the last word of the key."""
_TLS_ONLY: Final = {
    "tls_mode": "tls.server.mode",
    "server_key": "tls.server.keyPath",
    "server_password": "tls.server.keyPassword",
    "server_password_file": "tls.server.keyPasswordFile",
    "server_trust": "tls.server.trustCertPath",
}
"""Settings that need a certificate of the server."""
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


def _files(end: str, values: Mapping[str, Any], **more: Any) -> TlsFiles:
    """Return the files of one end, server or client. Raises ConfigInvalid with the key."""
    given: dict[str, Any] = {field: values.get(f"{end}_{part}") for part, (field, _) in _FILE_FIELDS.items()}
    if given["key_password"] is None and given["key_password_file"] is None:
        given["key_password"] = os.environ.get(f"ROCKETMQ_TLS_{end.upper()}_KEY_PASSWORD")
    names = {field: f"tls.{end}.{name}" for field, name in _FILE_FIELDS.values() if field != "key_password"}
    return TlsFiles(**given, names=names, **more)


def listen_config(
    values: Mapping[str, Any],
    default_port: int,
    conf: str | Path | None,
    *,
    users_path: Path | None = None,
) -> ListenConfig:
    """Return the settings of a port from the values of the group "listen" in the file `conf`.

    users_path: the directory of users and policies without authConfigPath. Raises ConfigInvalid.
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
        users=_users(values, conf, users_path),
        options=options,
        **limits,
    )


def _options(values: Mapping[str, Any]) -> ChannelOptions:
    limits = {field.name: values[field.name] for field in fields(ChannelOptions) if field.name in values}
    mode, has_cert = values.get("tls_mode", "enforcing"), "server_cert" in values
    verify_mode = _client_auth(values)
    tls_keys = [key for field, key in _TLS_ONLY.items() if field in values]
    if mode == "disabled" or not (has_cert or tls_keys):
        return ChannelOptions(**limits)
    if not has_cert:  # without TLS, everybody could connect
        raise ConfigInvalid(f"{tls_keys[0]} needs tls.server.certPath and tls.server.keyPath")
    files = _files("server", values, server=True, verify_mode=verify_mode)
    return ChannelOptions(ssl=files, also_plain=mode == "permissive", **limits)


def _client_auth(values: Mapping[str, Any]) -> ssl.VerifyMode:
    """Return whether clients must show a certificate. An untrusted certificate is always rejected."""
    has_trust = "server_trust" in values
    text = values.get("tls_client_auth", "require" if has_trust else "none")
    if text != "none" and not has_trust:
        raise ConfigInvalid(f"tls.server.need.client.auth {text} needs tls.server.trustCertPath")
    return _CLIENT_AUTH[text]


def client_files(values: Mapping[str, Any]) -> TlsFiles | None:
    """Return the files for connections to tls:// addresses, or None if not set. Raises ConfigInvalid."""
    if not any(f"client_{part}" in values for part in ("cert", "key", "trust")):
        return None
    return _files("client", values)


def _acl_file(values: Mapping[str, Any], conf: str | Path | None) -> Path:
    """Return the file with the accounts: where 4.6.0 finds it, else next to the configuration file."""
    home = values.get("home") or os.environ.get("ROCKETMQ_HOME")
    named = values.get("acl_file")
    if home:
        return Path(home, (named or _ACL_FILE).lstrip("/"))  # as in RocketMQ, a leading / means its home
    if named:
        return Path(named)
    if conf is None:
        raise ConfigInvalid("aclEnable needs rocketmq.acl.plain.file or rocketmqHome to find the accounts")
    return Path(conf).parent / "plain_acl.yml"


def inner_credentials(values: Mapping[str, Any]) -> Credentials | None:
    """Return the account of the server's own requests: innerClientAuthenticationCredentials."""
    found: UserInfo | None = values.get("inner_user")
    if found is None:
        return None
    return Credentials(access_key=found.username or "", secret_key=found.password or "")


def _users(
    values: Mapping[str, Any], conf: str | Path | None, default_path: Path | None
) -> UsersConfig | None:
    """Return the settings of users and policies; None without authenticationEnabled."""
    named = {"init_user": "initAuthenticationUser", "inner_user": "innerClientAuthenticationCredentials"}
    initial = {key: values[field] for field, key in named.items() if values.get(field) is not None}
    if not values.get("authentication"):
        needless = [*initial]
        needless += ["authorizationEnabled"] if values.get("authorization") else []
        needless += ["migrateAuthFromV1Enabled"] if values.get("migrates") else []
        if needless:
            raise ConfigInvalid(
                f"{needless[0]} needs authenticationEnabled=true: without it, nobody would have to sign in"
            )
        return None
    path = Path(values["users_path"]) if values.get("users_path") else default_path
    if path is None:
        raise ConfigInvalid("authenticationEnabled needs authConfigPath, the directory of users and policies")
    return UsersConfig(
        file=path / "auth.json",
        authorizes=values.get("authorization", False),
        initial_users=tuple(initial.values()),
        migrate_from=_acl_file(values, conf) if values.get("migrates") else None,
    )
