"""Which cluster the command rocketpy uses: options, environment and profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy_cli.context import global_options_first
from rocketpy_cli.profiles import find_cluster

FILE = """
[default]
namesrv = "default:9876"

[production]
namesrv = "production:9876"
access_key = "reports"
secret_key = "secret"
signature_version = 2
namespace = "shop"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables that name a file with two profiles."""
    file = tmp_path / "rocketpy.toml"
    file.write_text(FILE, "utf-8")
    return {"ROCKETPY_CONFIG": str(file)}


@pytest.mark.parametrize(
    ("namesrv", "profile", "more", "address", "used"),
    [
        ("option:1", "production", {"ROCKETPY_NAMESRV": "variable:1"}, "option:1", "production"),
        (None, "production", {"ROCKETPY_NAMESRV": "variable:1"}, "variable:1", "production"),
        (None, "production", {"NAMESRV_ADDR": "sdk:1"}, "production:9876", "production"),
        (None, None, {"ROCKETPY_PROFILE": "production"}, "production:9876", "production"),
        (None, None, {"NAMESRV_ADDR": "sdk:1"}, "default:9876", "default"),
    ],
)
def test_the_nearest_source_wins(
    environment: dict[str, str],
    namesrv: str | None,
    profile: str | None,
    more: dict[str, str],
    address: str,
    used: str,
) -> None:
    """A command could go to another cluster than the one that its user named last."""
    found = find_cluster(namesrv, profile, environment | more)
    assert (found.client.namesrv, found.profile) == (address, used)


@pytest.mark.parametrize(
    ("variables", "address"), [({"NAMESRV_ADDR": "sdk:1"}, "sdk:1"), ({}, "127.0.0.1:9876")]
)
def test_without_a_file(
    variables: dict[str, str], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new user would need a file first."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = find_cluster(None, None, variables)
    assert str(found) == f"{address} (no profile)"
    assert found.client.credentials is None


def test_a_profile_has_account_and_namespace(environment: dict[str, str]) -> None:
    """Requests would be unsigned, or reach the topics of another tenant."""
    found = find_cluster(None, "production", environment | {"ROCKETPY_SECRET_KEY": "newer"})
    account = found.client.credentials
    assert account is not None
    assert (account.access_key, account.secret_key, account.signature_version) == ("reports", "newer", 2)
    assert found.client.namespace == "shop"
    assert str(found) == "production:9876 (profile production, namespace shop)"
    assert "newer" not in repr(found)


@pytest.mark.parametrize(
    ("text", "profile", "says"),
    [
        (FILE, "staging", "has no profile [staging]; it has default, production"),
        ("namesrv = 'x:1'", "default", "has no profile [default]; it has none"),
        ("[default]\nnamesvr = 'x:1'", None, "has the unknown field namesvr; did you mean namesrv?"),
        ("[default]\nzz = 'x:1'", None, "has the unknown field zz; the fields are namesrv, access_key"),
        ("[default]\nnamesrv = ['x:1']", None, "namesrv is ['x:1']; it must be a string"),
        ("[default", None, "cannot be read: "),
        (
            "[default]\naccess_key = 'a'",
            None,
            "secret_key of profile default is not set, but access_key of profile default is;",
        ),
        ("[default]\naccess_key='a'\nsecret_key='b'\nsignature_version='3'", None, "choose 1 or 2"),
        ("[default]\ntls_ca = '/nonexistent'", None, "tls_ca"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, profile: str | None, says: str, tmp_path: Path) -> None:
    """A typing error could send commands to the default cluster."""
    file = tmp_path / "rocketpy.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigInvalid) as error:
        find_cluster(None, profile, {"ROCKETPY_CONFIG": str(file)})
    assert says in str(error.value)
    assert "secret" not in str(error.value).replace("secret_key", "")


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A wrong path would silently mean the default cluster."""
    with pytest.raises(ConfigInvalid, match="does not exist"):
        find_cluster(None, None, {"ROCKETPY_CONFIG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize(
    ("line", "sorted_line"),
    [
        ("send T --json", "--json send T"),
        ("send T --namesrv a:1 x", "--namesrv a:1 send T x"),
        ("send -n a:1 T --profile=p", "-n a:1 --profile=p send T"),
        ("send T -- --json", "send T -- --json"),
        ("send T --namesrv", "--namesrv send T"),
        ("send T --tags=--json", "send T --tags=--json"),
    ],
)
def test_global_options_may_stand_anywhere(line: str, sorted_line: str) -> None:
    """`rocketpy send T hello --profile x` would be wrong usage."""
    assert global_options_first(line.split()) == sorted_line.split()
