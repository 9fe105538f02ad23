"""Codes: the numbers are those of RocketMQ 4.6.0, and of 5.5.0 for later ones."""

from __future__ import annotations

from enum import IntEnum

import pytest

from rocketpy.protocol.codes import VERSION_4_6_0, LanguageCode, RequestCode, ResponseCode, name_of
from tests.golden_data import newer_request_codes, vectors

CONSTANTS = {
    table["class"]: {k: v for k, v in table.items() if k != "class"} for table in vectors("constants")
}


LATER = {name: code for name, code in newer_request_codes().items() if name in RequestCode.__members__}
"""Requests of newer clients, as far as this project has them."""
LATER_RESPONSES = {
    "INVALID_PARAMETER": 29,
    "POLLING_FULL": 209,
    "POLLING_TIMEOUT": 210,
    "ILLEGAL_OPERATION": 604,
}
"""Source: ResponseCode of 5.3.3."""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RequestCode, CONSTANTS["RequestCode"] | LATER),
        (ResponseCode, CONSTANTS["ResponseCode"] | CONSTANTS["RemotingSysResponseCode"] | LATER_RESPONSES),
        (LanguageCode, {v["language"]: v["code"] for v in vectors("versionAndLanguage") if "language" in v}),
    ],
)
def test_every_code_has_its_number(ours: type[IntEnum], theirs: dict[str, int]) -> None:
    """A request would have the code of another, or a rejection would be mistaken for another."""
    assert {name: member.value for name, member in ours.__members__.items()} == theirs


def test_version_is_that_of_4_6_0() -> None:
    """QUIRKS 4: Java peers would assume another release and switch features."""
    assert vectors("versionAndLanguage")[0]["CURRENT_VERSION"] == VERSION_4_6_0


def test_unknown_codes_keep_their_number() -> None:
    """The rejection of a newer broker would crash the code that reports it."""
    assert name_of(ResponseCode, ResponseCode.NO_PERMISSION) == "NO_PERMISSION"
    assert name_of(ResponseCode, 4711) == "4711"
