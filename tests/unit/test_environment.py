"""From which source each setting comes."""

from __future__ import annotations

import pytest

from rocketpy.config import Credentials
from rocketpy.environment import environment_sources, find_settings
from rocketpy.errors import ConfigInvalid

RULES = [
    ({"ROCKETPY_ACCESS_KEY": "a", "ROCKETPY_SECRET_KEY": "s"}, ("a", "s", None, 1)),
    ({"ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "s"}, ("a", "s", None, 1)),
    # The token of another account must not be sent.
    (
        {
            "ROCKETPY_ACCESS_KEY": "a",
            "ROCKETPY_SECRET_KEY": "s",
            "ROCKETMQ_ACCESS_KEY": "b",
            "ROCKETMQ_SECRET_KEY": "t",
            "ROCKETMQ_SECURITY_TOKEN": "of b",
        },
        ("a", "s", None, 1),
    ),
    # A new secret of the same account, from a source above it.
    (
        {
            "ROCKETPY_SECRET_KEY": "new",
            "ROCKETMQ_ACCESS_KEY": "b",
            "ROCKETMQ_SECRET_KEY": "t",
            "ROCKETMQ_SECURITY_TOKEN": "of b",
        },
        ("b", "new", "of b", 1),
    ),
    # The version is that of the servers: ignoring it would sign with the weaker one.
    (
        {
            "ROCKETPY_ACCESS_KEY": "a",
            "ROCKETPY_SECRET_KEY": "s",
            "ROCKETMQ_SIGNATURE_VERSION": "2",
        },
        ("a", "s", None, 2),
    ),
    (
        {
            "ROCKETMQ_ACCESS_KEY": "a",
            "ROCKETMQ_SECRET_KEY": "s",
            "ROCKETPY_SIGNATURE_VERSION": "2",
        },
        ("a", "s", None, 2),
    ),
    ({"ROCKETPY_ACCESS_KEY": "", "ROCKETPY_SECRET_KEY": ""}, None),
    ({"ROCKETPY_SECURITY_TOKEN": "t"}, None),
]


@pytest.mark.parametrize(("variables", "account"), RULES)
def test_an_account_is_of_one_source(
    variables: dict[str, str], account: tuple[str, str, str | None, int] | None
) -> None:
    """A request would be signed with the key of one account and the token of another one."""
    found = Credentials.of_settings(find_settings(environment_sources(variables)))
    shown = None
    if found is not None:
        shown = (found.access_key, found.secret_key, found.security_token, found.signature_version)
    assert shown == account


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"ROCKETPY_ACCESS_KEY": "a", "ROCKETMQ_ACCESS_KEY": "b", "ROCKETMQ_SECRET_KEY": "t"},
            "ROCKETPY_SECRET_KEY is not set, but ROCKETPY_ACCESS_KEY is; set both or none",
        ),
        ({"ROCKETMQ_SECRET_KEY": "t"}, "ROCKETMQ_ACCESS_KEY is not set, but ROCKETMQ_SECRET_KEY is"),
        (
            {"ROCKETPY_ACCESS_KEY": "a", "ROCKETPY_SECRET_KEY": "b", "ROCKETMQ_SIGNATURE_VERSION": "3"},
            "ROCKETMQ_SIGNATURE_VERSION is '3'; choose 1 or 2",
        ),
    ],
)
def test_half_an_account_is_an_error(variables: dict[str, str], says: str) -> None:
    """A secret of another account would be used, and the broker's error would not say why it is wrong."""
    with pytest.raises(ConfigInvalid, match=says):
        Credentials.of_settings(find_settings(environment_sources(variables)))


def test_a_key_file_belongs_to_its_certificate() -> None:
    """A certificate that has its key in the same file would be used with the key of another one."""
    profile = environment_sources({"ROCKETPY_TLS_CERT": "of profile", "ROCKETPY_TLS_KEY": "key"})[0]
    own, _ = environment_sources({"ROCKETPY_TLS_CERT": "mine.pem"})
    found = find_settings([own, profile])
    assert {setting: each.value for setting, each in found.items()} == {"tls_cert": "mine.pem"}
