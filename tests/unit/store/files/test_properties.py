"""Files of settings that are changed by a command."""

from pathlib import Path

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.store.files.properties import change_file, read_settings, with_settings


def changed(text: str, **wanted: str) -> dict[str, str]:
    return {setting.key: setting.value for setting in read_settings(with_settings(text, wanted), "b.conf")}


@pytest.mark.parametrize(
    "text",
    [
        "a=1\nb=old\n",
        "a=1\nb : old",
        "a=1\nb=old \\\n  and more\n",
        "a=1\n b=old\\",
        "a=1\n# b=old\\\n",
        "a=1\nc=x\\",
        "a=1\nc=x\\\\",
        "a=1\nc=x\\\nb=is part of c\n",
        "a=1\nb=old\nb=older\n",
    ],
)
def test_a_changed_setting_is_read(text: str) -> None:
    """A command would succeed, and the next start would read another value."""
    found = changed(text, b="new")
    assert (found["a"], found["b"]) == ("1", "new")
    assert found.get("c", "") == {s.key: s.value for s in read_settings(text, "b.conf")}.get("c", "")


@pytest.mark.parametrize(
    "value",
    [
        "a\\",
        "a\\b",
        "a\nlistenPort=1",
        "\ta",
        "x=y:z",
        "# no comment",
        "a\r\fb",
        "é",
        "\u3000a\u00a0",
        "\x85a\x1f",
    ],
)
def test_a_value_is_no_more_than_a_value(value: str) -> None:
    """A value could bring further settings along, or swallow the next one."""
    assert changed("a=1\n", b=value, c="2") == {"a": "1", "b": value, "c": "2"}
    assert changed("b=1\na=1\n", b=value) == {"a": "1", "b": value}


def test_an_invalid_line_is_reported_with_its_file(tmp_path: Path) -> None:
    """An administrator could not find the line that prevents a change."""
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n=2\n")
    with pytest.raises(ConfigInvalid, match=rf"^{path}:2: the setting has no name"):
        change_file(path, {"a": "3"})
    assert path.read_text() == "a=1\n=2\n"
