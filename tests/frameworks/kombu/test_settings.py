"""Addresses, options and names."""

from __future__ import annotations

import kombu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpy.errors import ConfigInvalid
from rocketpy.message.message import check_group, check_topic
from rocketpy_kombu.names import valid_name
from rocketpy_kombu.settings import read_settings

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize(
    ("url", "namesrv"),
    [
        ("rocketmq://", ""),
        ("", ""),
        ("rocketmq://one", "one:9876"),
        ("rocketmq://one:1,two:2", "one:1;two:2"),
        ("rocketmq://[::1],[::2]:2", "[::1]:9876;[::2]:2"),
        ("embedded://", "embedded:"),
        ("embedded://?slaves=1", "embedded:?slaves=1"),
        ("embedded:///var/lib/shop?flush=sync", "embedded:///var/lib/shop?flush=sync"),
    ],
)
def test_an_address_names_the_name_servers(url: str, namesrv: str) -> None:
    """Celery would connect to another broker than the one in its settings."""
    assert read_settings(url, ssl=False, options={}).client.namesrv == namesrv


def test_an_address_has_an_account_and_a_namespace() -> None:
    """A broker with access control would refuse every request."""
    client = read_settings("rocketmq://shop:s%40cret@one:1/team", ssl=False, options={}).client
    assert client.credentials is not None
    assert (client.credentials.access_key, client.credentials.secret_key) == ("shop", "s@cret")
    assert (client.namesrv, client.namespace) == ("one:1", "team")


def test_ssl_means_tls_addresses() -> None:
    """Tasks would cross the network unencrypted."""
    client = read_settings("rocketmq://one:1,two", ssl=True, options={}).client
    assert client.namesrv == "tls://one:1;tls://two:9876"
    with pytest.raises(ConfigInvalid, match="ssl has cafile; it may have ca_certs"):
        read_settings("rocketmq://one", ssl={"cafile": "x"}, options={})


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("rocketmq://one/a?x=1", {}, "is no address of RocketMQ"),
        ("amqp://one", {}, "is no address of RocketMQ"),
        ("", {"visibility_timeout": "soon"}, "visibility_timeout seconds is 'soon'"),
        ("", {"visibility_timeout": 7 * 86400}, "visibility_timeout seconds is 604800"),  # usual with Redis
        ("", {"visibility_timeout": float("nan")}, "visibility_timeout seconds is nan"),
        ("", {"topic_queues": 0}, "topic_queues is 0"),
        ("", {"group": 7}, "transport option group is 7; it must be a string"),
    ],
)
def test_a_wrong_setting_is_an_error(url: str, options: dict[str, object], text: str) -> None:
    """A typing error would be found when a task is lost."""
    with pytest.raises(ConfigInvalid, match=text):
        read_settings(url, ssl=False, options=options)


def test_a_shown_address_has_no_secret() -> None:
    """Celery prints the address when it starts."""
    assert kombu.Connection("rocketmq://shop:secret@one").as_uri() == "rocketmq://shop:**@one"
    assert kombu.Connection("rocketmq+embedded://").as_uri() == "rocketmq+embedded://"


@pytest.mark.parametrize("key", ["hid/den", "h@hidden", "h?hidden", "@hidden"])
def test_a_key_that_is_not_quoted_is_not_shown(key: str) -> None:
    """A part of the key would be in the logs, or in an error about a host of that name."""
    url = f"rocketmq://shop:{key}@one"
    assert kombu.Connection(url).as_uri() == "rocketmq://shop:**@one"
    with pytest.raises(ConfigInvalid, match="percent-encode") as error:
        read_settings(url, ssl=False, options={})
    assert "den" not in str(error.value)


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_of_queues_become_different_valid_topics(one: str, two: str) -> None:
    """Two queues would share their tasks, or a queue could not be declared."""
    check_topic("%RETRY%" + "kombu-" + valid_name(one) + "_" + valid_name(one))
    check_group("kombu-" + valid_name(one))
    assert (valid_name(one) == valid_name(two)) == (one == two)


def test_a_valid_name_stays() -> None:
    """Programs in other languages would not find the topic."""
    assert valid_name("celery") == "celery"
    assert valid_name("shop.high").startswith("shop-high-")
