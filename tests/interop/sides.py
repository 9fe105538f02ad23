"""Pairings of clients and servers for the cases, with their names in the table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rocketpy.config import Credentials
from tests.interop.cluster import BINARY_HEADERS, Cluster, Make, cluster
from tests.interop.java_peer import DEFAULT_VERSION, JavaPeer


@dataclass(frozen=True)
class Side:
    """A client, the makes of its servers, its header codec, and versions of RocketMQ.

    client_version: RocketMQ version of a Java driver. version: that of Java servers.
    """

    driver: str
    namesrv: Make
    broker: Make
    client: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    version: str = DEFAULT_VERSION
    client_version: str = DEFAULT_VERSION

    @property
    def direction(self) -> str:
        """As the table prints it."""
        driver = self.driver
        if self.client_version != DEFAULT_VERSION:
            driver += f" of {self.client_version}"
        if self.driver in {"Java client", "Java examples"}:
            driver += " (binary)" if self.client else " (JSON)"
        broker = f"{self.broker} broker" + (" (binary)" if self.server else "")
        version = "" if self.version == DEFAULT_VERSION else f" of {self.version}"
        return f"{driver} -> {self.namesrv} namesrv + {broker}{version}"


OPERATOR = Credentials(access_key="operator", secret_key="other-secret")
OPERATOR_ACL = """
globalWhiteRemoteAddresses:
- 10.10.10.10
accounts:
- accessKey: operator
  secretKey: other-secret
  whiteRemoteAddress:
  admin: true
"""
"""The file plain_acl.yml with the operator's account only, an administrator's."""

NEWER_VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
JAVA_CLIENT = (
    Side("Java client", "java", "java"),  # checks the test setup
    Side("Java client", "our", "our"),
    Side("Java client", "our", "our", BINARY_HEADERS),
    Side("Java client", "our", "java"),
    Side("Java client", "our", "java", BINARY_HEADERS),
    Side("Java client", "java", "our"),
    *(Side("Java client", "our", "our", client_version=version) for version in NEWER_VERSIONS),
)
EXAMPLES = (
    Side("Java examples", "java", "java"),
    Side("Java examples", "our", "our"),
    Side("Java examples", "our", "our", BINARY_HEADERS),
)
NAME_SERVERS = (
    Side("Java broker and mqadmin", "java", "java"),
    Side("Java broker and mqadmin", "our", "java"),
)
OUR_SDK = (
    Side("our SDK", "java", "java"),
    Side("our SDK", "java", "java", server=BINARY_HEADERS),
    Side("our SDK", "our", "java"),
    Side("our SDK", "java", "our"),
)
NEWER = tuple(Side("our SDK", "java", "java", version=version) for version in NEWER_VERSIONS)


def newer_servers(driver: str) -> tuple[Any, ...]:
    """Return parameters for cases whose newer servers only `make interop-all` starts."""
    sides = (Side(driver, "java", "java", version=version) for version in NEWER_VERSIONS)
    return tuple(pytest.param(side, marks=pytest.mark.versions) for side in sides)


ALL_VERSIONS = newer_servers("our SDK")


@dataclass(frozen=True)
class Handover:
    """Which broker writes a store directory, and which reads it afterwards."""

    writer: Make
    reader: Make

    @property
    def direction(self) -> str:
        """As the table prints it."""
        return f"store directory: {self.writer} -> {self.reader}"


HANDOVERS = (Handover("java", "java"), Handover("our", "java"), Handover("java", "our"))


def serve(
    side: Side,
    peer: JavaPeer,
    run: Path,
    *,
    namesrv_port: int | None = None,
    conf: Mapping[str, object] | None = None,
    names_conf: Mapping[str, object] | None = None,
    java: Mapping[str, str] | None = None,
) -> AbstractContextManager[Cluster]:
    """Start the servers of a side; see `cluster`."""
    return cluster(
        peer.of_version(side.client_version),
        run,
        namesrv=side.namesrv,
        broker=side.broker,
        namesrv_port=namesrv_port,
        client=side.client,
        server=side.server,
        conf=conf,
        names_conf=names_conf,
        java=java,
        servers=peer.of_version(side.version),
    )
