"""Certificates for RocketMQ's servers and clients, in files that Netty can read."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


def issue(authority: trustme.CA, directory: Path) -> Path:
    """Write ca.pem, and pairs for the server 127.0.0.1 and for a client (`client.pem`, `client.key`).

    Returns the tls.properties of servers that accept TLS and plain text, and require a client certificate.
    """
    directory.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    for name in ("127.0.0.1", "client"):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(directory / f"{name}.pem")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        # Netty reads PKCS #8 only.
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (directory / f"{name}.key").write_bytes(pem)
    settings = {
        "test.mode.enable": "false",
        "server.mode": "permissive",
        "server.certPath": directory / "127.0.0.1.pem",
        "server.keyPath": directory / "127.0.0.1.key",
        "server.need.client.auth": "require",
        "server.authClient": "true",
        "server.trustCertPath": directory / "ca.pem",
    }
    path = directory / "tls.properties"
    path.write_text("".join(f"tls.{name}={value}\n" for name, value in settings.items()))
    return path
