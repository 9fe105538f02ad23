"""What broker.conf and namesrv.conf say about whom to serve: address, TLS, access control, limits."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import Address, ChannelOptions
from rocketpy_broker.config import ListenConfig

__all__ = ["client_context", "listen_config"]

_ACL_FILE: Final = "conf/plain_acl.yml"
"""Below RocketMQ's home, unless rocketmq.acl.plain.file says otherwise."""

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


class _Identity(NamedTuple):
    """Keys of one end. name: server or client, as in the keys' names."""

    name: str
    cert: str | None
    key: str | None
    password: str | None
    trust: str | None

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> _Identity:
        """Those of one end among the settings read."""
        return cls(name, *(values.get(f"{name}_{part}") for part in ("cert", "key", "password", "trust")))

    def put_into(self, context: ssl.SSLContext) -> None:
        """Load what is there. Raises ConfigInvalid naming the key."""
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        at = "certPath", self.cert
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, lambda: self.password or "")
            at = "trustCertPath", self.trust
            if self.trust is not None:
                context.load_verify_locations(self.trust)
        except (OSError, ssl.SSLError) as error:
            raise ConfigInvalid(f"tls.{self.name}.{at[0]} {at[1]}: {error}") from None


def listen_config(values: Mapping[str, Any], default_port: int, conf: Path | None) -> ListenConfig:
    """Return where a server is reached. values: those of the group "listen"; conf: the file they are from.

    Raises ConfigInvalid.
    """
    scheme, host, port = values.get("listen") or (None, values.get("host", "127.0.0.1"), None)
    if port is None:
        port = values.get("port", default_port)
    options = _options(values)
    scheme = scheme or ("tls" if options.ssl is not None else "tcp")
    limits = {name: values[name] for name in ("unsigned_timeout_ms",) if name in values}
    return ListenConfig(
        address=Address(scheme, host, port),
        insecure=values.get("insecure", False),
        acl_file=_acl_file(values, conf) if values.get("acl_enable") else None,
        options=options,
        **limits,
    )


def _options(values: Mapping[str, Any]) -> ChannelOptions:
    limits = {name: values[name] for name in _LIMITS if name in values}
    mode, identity = values.get("tls_mode", "enforcing"), _Identity.of("server", values)
    if mode == "disabled" or (identity.cert is None and "tls_mode" not in values):
        _client_auth(values, identity)
        return ChannelOptions(**limits)
    if identity.cert is None:
        raise ConfigInvalid(f"tls.server.mode {mode} needs tls.server.certPath and tls.server.keyPath")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.put_into(context)
    context.verify_mode = _client_auth(values, identity)
    return ChannelOptions(ssl=context, also_plain=mode == "permissive", **limits)


def _client_auth(values: Mapping[str, Any], identity: _Identity) -> ssl.VerifyMode:
    """Whether clients show a certificate; one that is not trusted is never let in."""
    text = values.get("tls_client_auth", "none" if identity.trust is None else "require")
    if text != "none" and identity.trust is None:
        raise ConfigInvalid(f"tls.server.need.client.auth {text} needs tls.server.trustCertPath")
    return _CLIENT_AUTH[text]


_LIMITS: Final = (
    "idle_timeout_ms", "frame_timeout_ms", "max_connections", "max_connections_per_host", "max_unanswered",
    "max_frame_bytes", "max_header_bytes", "write_limit_bytes",
)  # fmt: skip


def client_context(values: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return how a broker meets name servers with tls://; None: nothing is said. Raises ConfigInvalid."""
    identity = _Identity.of("client", values)
    if identity.cert is None and identity.trust is None:
        return None
    context = ssl.create_default_context()
    identity.put_into(context)
    return context


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
