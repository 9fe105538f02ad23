"""Each feature of RocketMQ 5's Java client with our servers; the cases with Java's servers check the driver.

All cases of a pairing run in one JVM, several at a time, since most of them wait. See java/Features.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
import trustme

from tests.interop.accounts import MIGRATED, write_accounts
from tests.interop.certificates import issue
from tests.interop.java_peer import JavaPeer, results_of
from tests.interop.sides import OPERATOR, OPERATOR_ACL, Side, serve

pytestmark = pytest.mark.interop

CLIENT: Final = "Java client's features"
CONF: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 2000,
}
SECRETS: Final = f"{OPERATOR.access_key}:{OPERATOR.secret_key}"
FEATURES: Final = """
sync send
async send
oneway send
send to a queue and with a selector
batch
auto-batch
auto-batch of sync sends
properties, tags, keys and flag
look-ups of a message
a message of 4 MB, and one that is too long
timer: delay in ms
timer: delay in s
timer: time of delivery
timer: a time in the past
timer: too far ahead
delay level
recall
recall with a forged handle
compressed body: LZ4
compressed body: ZSTD
compressed body: ZLIB
transactions: commit, rollback and check
request and reply
request with a callback
push: tags
push: SQL92
push: orderly
push: broadcast
push: two members of a group
push: retry
push: dead letters
push: from a time
push: goes on where the group was
lite pull: subscribe
lite pull: assign, seek and commit
pull: statuses and offsets
topic of type NORMAL
topic of type FIFO
topic of type DELAY
topic of type TRANSACTION
topic of an unknown type
trace
namespace
namespace v2
heartbeat v2
heartbeats at the same time
stream requests
fault detection
a topic made by its first message
the progress of a group
""".strip().splitlines()


@dataclass(frozen=True)
class Pairing:
    """A side, with or without accounts and TLS."""

    side: Side
    is_secure: bool = False

    @property
    def direction(self) -> str:
        """As the table prints it."""
        return self.side.direction + " by TLS with accounts" * self.is_secure


def pairings() -> Iterator[Any]:
    """Yield the pairings; only `make interop-all` runs those with RocketMQ's servers, 5.3.3 or security."""
    with_java = Side(CLIENT, "java", "java", client_version="5.5.0", version="5.5.0")
    older = Side(CLIENT, "our", "our", client_version="5.3.3")
    newest = Side(CLIENT, "our", "our", client_version="5.5.0")
    yield pytest.param(Pairing(newest), id=newest.direction)
    for pairing in (Pairing(with_java), Pairing(older), Pairing(with_java, True), Pairing(newest, True)):
        yield pytest.param(pairing, id=pairing.direction, marks=pytest.mark.versions)


@pytest.fixture(scope="module", params=pairings())
def results(
    request: pytest.FixtureRequest, peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """The result of each feature, and the ends of all logs in that of a failed one."""
    pairing: Pairing = request.param
    side, run = pairing.side, tmp_path_factory.mktemp("features")
    conf, names_conf, java = dict(CONF), {}, {}
    properties: dict[str, str] = {}
    if pairing.is_secure:
        servers_tls = issue(trustme.CA(), run / "tls")
        keys = dict(line.split("=", 1) for line in servers_tls.read_text().splitlines())
        properties = {
            "interop.keys": SECRETS,
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": keys["tls.server.trustCertPath"],
            "tls.client.certPath": str(run / "tls" / "client.pem"),
            "tls.client.keyPath": str(run / "tls" / "client.key"),
        }
        if side.broker == "java":
            write_accounts(run, "")
            conf |= MIGRATED
            java = {"tls.config.file": str(servers_tls)}
        else:
            home = run / "our-broker"
            home.mkdir()
            (home / "plain_acl.yml").write_text(OPERATOR_ACL)
            names_conf = {name: value for name, value in keys.items() if name.startswith("tls.server.")}
            conf |= {"aclEnable": "true", **names_conf}
    with serve(side, peer, run, conf=conf, names_conf=names_conf, java=java) as servers:
        addresses = (servers.namesrv.address, servers.broker.address)
        output = servers.peer.run(
            "Features", *addresses, home=run / "client", properties=properties, timeout_s=400
        )
        found = {result["case"]: result for result in results_of(output)}
        if not all(result["passed"] for result in found.values()):
            print(servers.report())
        return found


def test_each_feature_is_listed(results: dict[str, dict[str, Any]]) -> None:
    """A feature of the driver would not count."""
    assert set(results) == set(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature(results: dict[str, dict[str, Any]], feature: str) -> None:
    """QUIRKS 80, 83: an application with RocketMQ 5's client could not use the feature with our servers."""
    result = results[feature]
    assert result["passed"], result["error"]
    assert "closing" not in result, result["closing"]
