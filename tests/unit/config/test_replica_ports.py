"""A broker starts only if its ports for replicas are protected."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from rocketpy.errors import ConfigInvalid
from rocketpy_broker import load_broker_config

FAR = "bindAddress=192.0.2.1\n"
ACL = "aclEnable=true\nrocketmq.acl.plain.file=/none\n"
GROUP = "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-127.0.0.1:40911\ndLegerSelfId=n0\n"
SEALED = GROUP.replace("n0-127", "n0-tls://127")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Settings of a server that asks for certificates."""
    directory, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return (
        f"tls.server.certPath={directory}/server.pem\ntls.server.keyPath={directory}/server.pem\n"
        f"tls.server.trustCertPath={directory}/ca.pem\n"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("", None),
        (ACL, None),
        (f"{ACL}brokerRole=SYNC_MASTER\n", "with access control the HA port"),
        (f"{ACL}brokerRole=SYNC_MASTER\nhaSecret=x\n", None),
        (f"{FAR}{ACL}", "at 192.0.2.1:10911, which other machines can reach, the HA port .* set haSecret"),
        (f"{FAR}{ACL}haSecret=x\n", None),
        (f"{FAR}insecure=true\n", None),
        (f"{FAR}TLS", "the HA port"),
        (f"{FAR}TLSreplicaCertNames=b0;b1\n", None),
        (f"{FAR}TLStls.server.need.client.auth=optional\nreplicaCertNames=b0\n", "need.client.auth=require"),
        (f"{FAR}{ACL}TLStls.server.mode=permissive\nreplicaCertNames=b0\n", "mode=enforcing"),
        ("replicaCertNames=b0\n", "needs TLS"),
        (GROUP, None),
        (f"{GROUP}{ACL}", "with access control the DLedger port .* set dLegerSecret"),
        (f"{GROUP}{ACL}haSecret=x\n", "DLedger"),
        (f"{GROUP}{ACL}dLegerSecret=x\n", None),
        (f"{GROUP}{ACL}insecure=true\n", None),
        (f"{GROUP}{FAR}{ACL}", "192.0.2.1:10911.*DLedger"),
        (f"{GROUP}{FAR}TLSreplicaCertNames=b0\n", "and tls:// in dLegerPeers"),
        (f"{SEALED}{FAR}TLSreplicaCertNames=b0\n", None),
        (f"{SEALED}{FAR}TLS", "DLedger"),
    ],
)
def test_replicas_have_to_authenticate(tmp_path: Path, tls: str, settings: str, problem: str | None) -> None:
    """Eight zero bytes at the port would return every message, in spite of access control."""
    path = tmp_path / "broker.conf"
    path.write_text(settings.replace("TLS", tls))
    if problem is None:
        load_broker_config(path)
    else:
        with pytest.raises(ConfigInvalid, match=problem):
            load_broker_config(path)
