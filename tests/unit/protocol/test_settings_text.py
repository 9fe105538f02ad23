"""Settings of servers as text: names and values arrive as they were written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpy.protocol.bodies import decode_settings, encode_settings
from rocketpy_broker.store.files.properties import read_settings

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(TEXTS.filter(bool), TEXTS))
def test_a_server_reads_what_was_written(settings: dict[str, str]) -> None:
    """A separator, blank or line break in a value would set another one, or more than one."""
    body = encode_settings(settings)
    assert body.isascii()
    assert {found.key: found.value for found in read_settings(body.decode(), "test")} == settings


def test_settings_that_a_server_shows_are_read() -> None:
    """A value with an equals sign would be cut, or a line without one be taken for a setting."""
    shown = b"brokerName=broker-a\nfilter=a=b\nempty=\n\nno setting\n spaced = x \n"
    assert decode_settings(shown) == {"brokerName": "broker-a", "filter": "a=b", "empty": "", "spaced": "x"}
