"""Settings: a bad value is rejected with its name when the settings are made."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from rocketpy import Producer
from rocketpy.client.name_servers import split_addresses
from rocketpy.config import (
    BatchConfig,
    ClientConfig,
    CompressionConfig,
    ConsumerConfig,
    Credentials,
    ProducerConfig,
    RetryConfig,
)
from rocketpy.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("group", "wrong", "words"),
    [
        (ProducerConfig, {"send_timeout_ms": 0}, "send_timeout_ms is 0"),
        (ProducerConfig, {"max_message_bytes": 1 << 30}, "at most 16777216"),
        (ProducerConfig, {"max_in_flight": 0}, "max_in_flight is 0"),
        (ProducerConfig, {"body_checksum": "md5"}, "choose one of crc-32c"),
        (RetryConfig, {"times": -1}, "retry.times is -1"),
        (CompressionConfig, {"level": 10}, "compression.level is 10"),
        (BatchConfig, {"max_bytes": 0}, "batch.max_bytes"),
        (ConsumerConfig, {"pull_timeout_ms": 0}, "pull_timeout_ms"),
        (ClientConfig, {"heartbeat_ms": 1}, "heartbeat_ms is 1"),
        (ClientConfig, {"codec": "xml"}, "codec is 'xml'"),
        (ClientConfig, {"namespace": None}, "namespace is a NoneType"),
        (ClientConfig, {"instance_name": "\ud800"}, "instance_name is not valid Unicode"),
        (Credentials, {"access_key": "a", "secret_key": "\ud800"}, "secret_key is not valid Unicode"),
        (Credentials, {"access_key": b"a", "secret_key": "b"}, "access_key is a bytes"),
    ],
)
def test_bad_values_are_named(group: Any, wrong: dict[str, Any], words: str) -> None:
    """A value of the wrong unit would show as messages lost much later."""
    with pytest.raises(ConfigInvalid, match=words):
        group(**wrong)


def test_equal_settings_are_one_client() -> None:
    """Every producer would open connections of its own."""
    assert ClientConfig(namesrv="a:1") == ClientConfig(namesrv="a:1")
    assert hash(ClientConfig(namesrv="a:1")) == hash(ClientConfig(namesrv="a:1"))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a:1;b:2", ("a:1", "b:2")),
        ("a:1,b:2 c:3; d:4 ;", ("a:1", "b:2", "c:3", "d:4")),
        ("tls://a:1;tls://b:2", ("tls://a:1", "tls://b:2")),
        ("[::1]:9876", ("[::1]:9876",)),
        ("memory://Test", ("memory://Test",)),
    ],
)
def test_lists_of_addresses(text: str, addresses: tuple[str, ...]) -> None:
    """A list that works with the Java client would not work here."""
    assert split_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", " ; ", "host", "host:1;other"])
def test_bad_addresses_are_named_in_the_error(text: str) -> None:
    """The user would see a failed connection instead of the setting that is wrong."""
    with pytest.raises(ConfigInvalid, match=r"name server|address"):
        split_addresses(text)


async def test_ssl_without_tls_addresses_is_refused() -> None:
    """A client with certificates would send messages and keys in plain text, without a warning."""
    settings = ClientConfig(namesrv="a:1;b:2", ssl=ssl.create_default_context())
    with pytest.raises(ConfigInvalid, match=r"a:1 would be reached without TLS; write tls://a:1"):
        await Producer("p", client=settings).start(wait=False)


@pytest.mark.parametrize("text", ["tls://a:1;b:2", "a:1 tls://b:2", "tcp://a:1,tls://b:2"])
async def test_a_list_with_and_without_tls_is_refused(text: str) -> None:
    """One address without TLS would send all requests to brokers, with their secrets, in plain text."""
    with pytest.raises(ConfigInvalid, match="only some of the name servers"):
        await Producer("g", text).start(wait=False)
