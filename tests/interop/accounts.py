"""RocketMQ's servers with access control: ACL 1.0 in 4.6 and 4.9, ACL 2.0 in 5.3.

One plain_acl.yml defines the accounts for all versions, since brokers of 5.3 migrate it. The file cannot
express the permission to query offsets, which ACL 2.0 requires of consumers, so mqadmin adds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.interop.cluster import Cluster
from tests.interop.java_peer import JavaPeer, make_home
from tests.interop.sides import OPERATOR, OPERATOR_ACL, Side, serve

_AUTH: Final = "org.apache.rocketmq.auth"
ACL_2: Final[Mapping[str, object]] = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
"""broker.conf of 5.3: ACL 2.0."""
MIGRATED: Final[Mapping[str, object]] = {**ACL_2, "migrateAuthFromV1Enabled": "true"}
"""broker.conf of 5.3: ACL 2.0, with the accounts of plain_acl.yml."""


@dataclass(frozen=True)
class Refusals:
    """Patterns of a broker's remarks on requests that it rejects."""

    no_key: str
    wrong_secret: str
    no_right: str
    closed_topic: str


def has_acl_2(version: str) -> bool:
    """Whether these brokers have ACL 2.0, and no ACL 1.0."""
    return version.startswith("5.")


def refusals(version: str, account: str) -> Refusals:
    """Return the patterns for brokers of this version. account: the account with a wrong secret."""
    if has_acl_2(version):
        no_right = r"no permission to access Topic:\S+ from 127\.0\.0\.1, "
        return Refusals(
            no_key="username cannot be null",
            wrong_secret="check signature failed",
            no_right=f"{no_right}no matched policies",
            closed_topic=f"{no_right}the decision is deny",
        )
    return Refusals(
        no_key="No accessKey is configured",
        wrong_secret=f"Check signature failed for accessKey={account}",
        no_right="No default permission",
        closed_topic="No default permission for topic:Closed",
    )


def write_accounts(run: Path, accounts: str) -> None:
    """Write the plain_acl.yml of a Java broker that will start in this directory."""
    conf = run / "java-broker" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(OPERATOR_ACL + accounts.lstrip())


@contextmanager
def serve_with_accounts(
    side: Side,
    peer: JavaPeer,
    run: Path,
    accounts: str,
    *,
    readers: Sequence[str],
    conf: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """Start the servers of a side, whose broker has these accounts and OPERATOR's.

    accounts: elements of the list in plain_acl.yml. readers: access keys that may ask for offsets.
    """
    write_accounts(run, accounts)
    acl_2 = has_acl_2(side.version)
    with serve(
        side, peer, run, conf={**(conf or {}), **(MIGRATED if acl_2 else {"aclEnable": "true"})}
    ) as running:
        if acl_2:
            operator = as_operator(running, peer.of_version(side.version))
            for reader in readers:
                rights = ("-s", f"User:{reader}", "-r", "Topic:*", "-a", "Get,Sub", "-d", "Allow")
                operator.admin_shows("success", "updateAcl", "-b", running.broker.address, *rights)
        yield running


def as_operator(servers: Cluster, peer: JavaPeer) -> Cluster:
    """The same servers for the mqadmin of `peer`, which signs as OPERATOR."""
    home = servers.run / "mqadmin"
    tools = make_home(home) / "conf" / "tools.yml"
    tools.write_text(f"accessKey: {OPERATOR.access_key}\nsecretKey: {OPERATOR.secret_key}\n")
    # RocketMQ's tools look for their account once in the life of a JVM.
    return replace(servers, peer=peer, java_properties={"rocketmq.home.dir": str(home)})
