"""KvConfig: the name server's settings by namespace."""

import pytest

from rocketpy_broker.namesrv.kv_config import KvConfig


def test_what_was_put_is_found_again_after_a_restart() -> None:
    """Without this ordered topics would lose their configuration with the name server."""
    config = KvConfig()
    config.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    again = KvConfig.decode(config.encode())
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"
    assert again.namespace("ORDER_TOPIC_CONFIG") == {"T": "broker-a:4"}


def test_what_is_not_there_is_none() -> None:
    """Without this a wrong key would read as an empty value."""
    config = KvConfig()
    assert config.get("n", "k") is None
    assert config.namespace("n") is None
    config.put("n", "k", "v")
    config.delete("n", "k")
    config.delete("m", "k")
    assert config.get("n", "k") is None
    assert config.namespace("n") == {}


def test_rubbish_is_refused() -> None:
    """Without this a damaged file would be taken for an empty one and then overwritten."""
    with pytest.raises(ValueError, match="JSON"):
        KvConfig.decode(b"{rubbish")


def test_javas_file_is_read() -> None:
    """Without this a name server that takes over from Java's would forget its settings."""
    assert KvConfig.decode(b'{"configTable":{"N":{"k":"v"}}}').get("N", "k") == "v"
