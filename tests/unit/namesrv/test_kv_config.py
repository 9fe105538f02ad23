"""KvConfig: the name server's settings by namespace."""

import pytest

from rocketpy.errors import UsageError
from rocketpy_broker.namesrv.kv_config import KvChange, KvConfig


def test_settings_are_found_after_a_restart() -> None:
    """Ordered topics would lose their configuration with the name server."""
    config = KvConfig()
    config.apply(KvChange("ORDER_TOPIC_CONFIG", "T", "broker-a:4"))
    again = KvConfig.decode(config.encode())
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"
    assert again.namespace("ORDER_TOPIC_CONFIG") == {"T": "broker-a:4"}


def test_a_missing_key_is_none() -> None:
    """A wrong key would read as an empty value."""
    config = KvConfig()
    assert config.get("n", "k") is None
    assert config.namespace("n") is None
    config.apply(KvChange("n", "k", "v"))
    config.apply(KvChange("n", "k", None))
    config.apply(KvChange("m", "k", None))
    assert config.get("n", "k") is None
    assert config.namespace("n") == {}


def test_invalid_files_are_rejected() -> None:
    """A damaged file would be taken for an empty one and then overwritten."""
    with pytest.raises(ValueError, match="JSON"):
        KvConfig.decode(b"{rubbish")


def test_javas_file_is_read() -> None:
    """A name server that takes over from Java's would forget its settings."""
    assert KvConfig.decode(b'{"configTable":{"N":{"k":"v"}}}').get("N", "k") == "v"


def test_settings_are_bounded() -> None:
    """25 values of 900 KB made the responses to registrations too large for every broker."""
    config = KvConfig()

    def check(value: str, reserved: int = 0) -> None:
        change = KvChange("n", "k", value)
        config.check(change, value_bytes_max=20, bytes_max=30, reserved=reserved)
        config.apply(change)

    with pytest.raises(UsageError, match="22 bytes; the limit of maxKvValueBytes is 20"):
        check("v" * 20)
    check("v" * 18)
    check("\u00fc" * 9)  # in place of the other
    assert config.size == 20
    with pytest.raises(UsageError, match="maxKvTotalBytes is 30"):
        config.check(KvChange("m", "k", "v" * 9), value_bytes_max=20, bytes_max=30)
    with pytest.raises(UsageError, match="would take 31 bytes"):
        check("v" * 8, reserved=21)
    assert config.encode([KvChange("n", "k", None)]) == b'{"configTable":{"n":{}}}'
    assert KvConfig.decode(config.encode()).size == 20
    config.apply(KvChange("n", "k", None))
    assert config.size == 1  # the namespace stays
    for number in range(9):
        config.check(KvChange(f"n{number}", "k", ""), value_bytes_max=20, bytes_max=30)
        config.apply(KvChange(f"n{number}", "k", ""))
        config.apply(KvChange(f"n{number}", "k", None))
    assert config.size == 19
    assert KvConfig.decode(config.encode()).size == 19
    config.check(KvChange("n0", "k", "v" * 10), value_bytes_max=20, bytes_max=30)
    config.apply(KvChange("n0", "k", "v" * 10))
    assert config.size == 30
