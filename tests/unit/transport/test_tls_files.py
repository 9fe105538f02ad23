"""Certificates and keys in files: errors are clear, and replaced files are loaded."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rocketpy.errors import ConfigInvalid
from rocketpy.transport import TlsFiles
from rocketpy_broker import load_broker_config

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
OPEN = "a password"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, good and bad."""
    root, authority = tmp_path_factory.mktemp("files"), trustme.CA()
    authority.cert_pem.write_to_path(root / "ca.pem")
    for name, times in (
        ("good", {}),
        ("expired", {"not_before": NOW - 2 * DAY, "not_after": NOW - DAY}),
        ("early", {"not_before": NOW + DAY, "not_after": NOW + 2 * DAY}),
    ):
        issued = authority.issue_cert("127.0.0.1", **times)  # type: ignore[arg-type]
        issued.cert_chain_pems[0].write_to_path(root / f"{name}.pem")
        issued.private_key_pem.write_to_path(root / f"{name}.key")
    key = load_pem_private_key((root / "good.key").read_bytes(), None)
    sealed = BestAvailableEncryption(OPEN.encode())
    (root / "sealed.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    (root / "old.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, sealed))
    (root / "text").write_text("not PEM")
    (root / "broken.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n"
    )
    (root / "password").write_text(f"{OPEN}\n")
    (root / "wrong").write_text("another\n")
    return root


def load(root: Path, *, server: bool, **fields: str) -> TlsFiles:
    given: dict[str, Any] = {
        name: value if name == "key_password" else root / value for name, value in fields.items()
    }
    return TlsFiles(server=server, **given)


GOOD = {"cert_path": "good.pem", "key_path": "good.key"}
BOTH = pytest.mark.parametrize("server", [True, False], ids=["server", "client"])


@BOTH
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cert_path": "none.pem"}, "cert_path .*none.pem cannot be read: no such file"),
        ({"cert_path": "."}, "cert_path .* cannot be read: is a directory"),
        ({"cert_path": "text"}, "cert_path .*text has no certificate in PEM format"),
        ({"cert_path": "good.key"}, "cert_path .*good.key has no certificate in PEM format"),
        ({"cert_path": "good.pem"}, "cert_path .*good.pem has no private key in PEM format"),
        ({"cert_path": "broken.pem"}, "cert_path .*broken.pem"),
        ({"cert_path": "good.pem", "key_path": "none"}, "key_path .*none cannot be read: no such file"),
        ({"cert_path": "good.pem", "key_path": "text"}, "key_path .*text has no private key in PEM format"),
        ({"cert_path": "good.pem", "key_path": "early.key"}, "early.key is not the key of .*good.pem"),
        ({"cert_path": "expired.pem", "key_path": "expired.key"}, "cert_path .*expired.pem .*has expired"),
        ({"cert_path": "early.pem", "key_path": "early.key"}, "cert_path .*early.pem .*is not valid yet"),
        ({"key_path": "good.key"}, "key_path .*good.key needs cert_path"),
        ({**GOOD, "key_path": "sealed.key"}, "sealed.key is encrypted: set key_password_file"),
        ({**GOOD, "key_path": "old.key"}, "old.key is encrypted: set key_password_file"),
        (
            {**GOOD, "key_path": "sealed.key", "key_password_file": "wrong"},
            "sealed.key cannot be decrypted with",
        ),
        ({**GOOD, "key_path": "old.key", "key_password_file": "wrong"}, "old.key cannot be decrypted with"),
        ({**GOOD, "key_path": "old.key", "key_password_file": "none"}, "key_password_file .*none cannot be"),
        ({**GOOD, "trust_cert_path": "none.pem"}, "trust_cert_path .*none.pem cannot be read: no such file"),
        ({**GOOD, "trust_cert_path": "text"}, "trust_cert_path .*text has no certificate in PEM format"),
        ({**GOOD, "trust_cert_path": "broken.pem"}, "trust_cert_path .*broken.pem has no certificate"),
    ],
)
def test_each_mistake_is_named(made: Path, fields: dict[str, str], problem: str, server: bool) -> None:
    """The only hint for an operator would be "[SSL] PEM lib (_ssl.c:3900)"."""
    with pytest.raises(ConfigInvalid, match=problem):
        load(made, server=server, **fields)


@BOTH
@pytest.mark.parametrize("key", ["good.key", "sealed.key", "old.key"])
@pytest.mark.parametrize("password", [{"key_password_file": "password"}, {"key_password": OPEN}])
def test_a_key_may_be_encrypted(made: Path, key: str, password: dict[str, str], server: bool) -> None:
    """The key would be readable in a copy or backup of the disk."""
    files = load(made, server=server, **{**GOOD, "key_path": key, **password})
    assert files.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_ca_that_has_expired_is_named(tmp_path: Path) -> None:
    """Every client would be refused, and each would be blamed for its own certificate."""
    root = trustme.CA()
    old = _expired_authority()
    path = tmp_path / "ca.pem"
    path.write_bytes(old)
    with pytest.raises(ConfigInvalid, match=r"trust_cert_path .*ca.pem has only certificates that expired"):
        TlsFiles(trust_cert_path=path)
    path.write_bytes(old + root.cert_pem.bytes())
    assert TlsFiles(trust_cert_path=path).context.verify_mode is ssl.CERT_REQUIRED


def _expired_authority() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - 2 * DAY, NOW - DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def looked(files: TlsFiles) -> ssl.SSLContext:
    """The context after the two looks that a change needs."""
    files.refresh()
    files.refresh()
    return files.context


def test_new_files_are_used_and_broken_ones_are_not(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate would have to be renewed with a restart; a mistake in it would end the service."""
    cert, key = tmp_path / "cert.pem", tmp_path / "cert.key"

    def put(name: str) -> None:
        for path in (cert, key):
            new = path.with_suffix(".new")
            new.write_bytes((made / f"{name}{path.suffix}").read_bytes())
            new.rename(path)

    put("good")
    files = TlsFiles(cert_path=cert, key_path=key, server=True)
    first = looked(files)
    assert first is looked(files)
    put("expired")
    assert looked(files) is first
    assert "expired" in files.problem
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    looked(files)
    assert len(caplog.records) == 1, "the same problem is not repeated"
    put("good")
    second = looked(files)
    assert second is not first
    assert files.problem == ""
    key.unlink()
    assert looked(files) is second
    assert "cert.key cannot be read" in files.problem


def test_files_are_used_once_their_problem_ends_without_a_change(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corrected owner or date changes no file, so the old certificate would be used until it expires."""
    cert = tmp_path / "cert.pem"
    cert.write_bytes((made / "good.pem").read_bytes())
    files = TlsFiles(cert_path=cert, key_path=made / "good.key", server=True)
    first = files.context
    with monkeypatch.context() as refusing:
        refusing.setattr(Path, "read_text", _denied)
        cert.write_bytes((made / "good.pem").read_bytes() * 2)
        assert looked(files) is first
        assert "permission denied" in files.problem
    assert looked(files) is not first
    assert files.problem == ""


def _denied(path: Path, *_: object) -> str:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_certificate_and_its_key_may_be_written_one_after_the_other(made: Path, tmp_path: Path) -> None:
    """A check between two writes would report a mistake that does not exist."""
    cert, key = tmp_path / "cert.pem", tmp_path / "cert.key"
    for path in (cert, key):
        path.write_bytes((made / f"good{path.suffix}").read_bytes())
    files = TlsFiles(cert_path=cert, key_path=key, server=True)
    other = trustme.CA().issue_cert("127.0.0.1")
    other.cert_chain_pems[0].write_to_path(cert)
    files.refresh()
    other.private_key_pem.write_to_path(key)
    files.refresh()
    assert files.problem == ""
    before = files.context
    files.refresh()
    assert files.context is not before
    assert files.problem == ""


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tls.server.keyPath={}/early.key", r"broker.conf:2: tls.server.keyPath .*is not the key of"),
        (
            "tls.server.keyPath={}/sealed.key",
            r"broker.conf:2: .*is encrypted: set tls.server.keyPasswordFile",
        ),
        ("tls.client.trustCertPath={}/none", r"broker.conf:2: tls.client.trustCertPath .*no such file"),
    ],
)
def test_a_file_of_settings_names_its_line(made: Path, tmp_path: Path, line: str, problem: str) -> None:
    """An operator would look for the mistake in several files."""
    path = tmp_path / "broker.conf"
    path.write_text(f"tls.server.certPath={made}/good.pem\n{line.format(made)}\n")
    with pytest.raises(ConfigInvalid, match=problem):
        load_broker_config(path)


def test_the_password_may_be_in_the_environment(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password would have to be written beside the key that it protects."""
    path = tmp_path / "broker.conf"
    path.write_text(f"tls.server.certPath={made}/good.pem\ntls.server.keyPath={made}/sealed.key\n")
    monkeypatch.setenv("ROCKETMQ_TLS_SERVER_KEY_PASSWORD", OPEN)
    assert load_broker_config(path).listen.address.scheme == "tls"


def test_a_problem_is_seen_without_a_connection(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The health of an idle server would not show that its new certificate cannot be used."""
    monkeypatch.setattr("rocketpy.transport.tls._CHECK_S", 0)
    certificate = tmp_path / "server.pem"
    certificate.write_bytes((made / "good.pem").read_bytes())
    files = TlsFiles(cert_path=certificate, key_path=made / "good.key", server=True)
    assert files.problem == ""
    certificate.write_text("not PEM")
    assert files.problem == ""  # it may still be written
    assert str(certificate) in files.problem
