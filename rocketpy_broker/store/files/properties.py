r"""Java properties files: the format of broker.conf and namesrv.conf, read with line numbers.

| line                         | means                                                        |
|------------------------------|--------------------------------------------------------------|
| ``key=value`` ``key: value`` | a setting; spaces around the separator are ignored           |
| ``# ...`` ``! ...``          | a comment                                                    |
| ``value \``                 | continues in the next line, whose leading spaces are ignored |
| ``\t \n \r \f \uXXXX``  | that character; any other escaped character means itself     |

Source: java.util.Properties. A file that is not valid UTF-8 is read as ISO-8859-1, as Java reads every file.
So a comment in another encoding does not prevent a start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.store.files.state_file import replace_file

_LINE_END = re.compile(r"\r\n?|\n")
"""Java's line ends. `str.splitlines` has more, such as U+0085, which may occur in an ISO-8859-1 comment."""

_SPACES = " \t\f"
"""Java's whitespace. `str.strip` removes more, such as U+00A0, which may be part of a value."""
_SEPARATOR = re.compile(rf"(?<!\\)(?:\\\\)*(?:[{_SPACES}]*[=:][{_SPACES}]*|[{_SPACES}]+)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {92: "\\\\", 9: "\\t", 10: "\\n", 13: "\\r", 12: "\\f"}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Setting(NamedTuple):
    """One setting and the line, counted from 1, on which it begins."""

    key: str
    value: str
    line: int


def read_file(path: str | Path) -> list[Setting]:
    """Return the settings of a file in order. Raises OSError, and ConfigInvalid with path and line."""
    return read_settings(_decoded(Path(path))[0], str(path))


def change_file(path: Path, wanted: Mapping[str, str]) -> None:
    """Set settings in a file, atomically and durably. Raises OSError, ConfigInvalid."""
    text, encoding = _decoded(path)
    replace_file(path, with_settings(text, wanted, str(path)), encoding)


def _decoded(path: Path) -> tuple[str, str]:
    """Return the text of a file, and its encoding."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("iso-8859-1"), "iso-8859-1"


def read_settings(text: str, source: str) -> list[Setting]:
    """Return the settings of a text in order. Raises ConfigInvalid with source and line."""
    return [_setting(line, number, source) for number, _, line in _logical_lines(_lines(text))]


def _logical_lines(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the numbers of each setting's first and last line, and its text with continued lines appended."""
    begun, first = "", 0
    for number, raw in enumerate(lines, 1):
        line = raw.lstrip(_SPACES)
        if not begun and (not line or line[0] in "#!"):
            continue
        first = first or number
        if _is_continued(line):
            begun += line[:-1]
            continue
        yield first, number, begun + line
        begun, first = "", 0
    if begun:
        yield first, len(lines), begun


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _lines(text: str) -> list[str]:
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _setting(line: str, number: int, source: str) -> Setting:
    found = _SEPARATOR.search(line)
    key = line if found is None else line[: found.end()].rstrip(_SPACES).rstrip("=:").rstrip(_SPACES)
    value = "" if found is None else line[found.end() :]
    if not key:
        raise ConfigInvalid(f"{source}:{number}: the setting has no name: {line!r}; write key=value")
    return Setting(_unescape(key, number, source), _unescape(value.rstrip(_SPACES), number, source), number)


def _unescape(text: str, number: int, source: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match.group(1)
        if escaped == "u":
            raise ConfigInvalid(f"{source}:{number}: \\u needs four hexadecimal digits")
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _CONTROLS.get(escaped, escaped)

    if "\\" not in text:
        return text
    # Java writes a character beyond U+FFFF as the two escapes of its surrogates.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def with_settings(text: str, wanted: Mapping[str, str], source: str = "the file") -> str:
    """Return a file's text with new values; other lines and comments stay.

    Raises ConfigInvalid with source and line for an invalid line.
    """
    lines, missing = _lines(text), dict(wanted)
    changed: list[str] = []
    done = 0
    for first, last, line in _logical_lines(lines):
        name = _setting(line, first, source).key
        if name in wanted:
            changed += (*lines[done : first - 1], _setting_line(name, wanted[name]))
            missing.pop(name, None)
            done = last
    changed += lines[done:]
    if changed and missing and _is_continued(changed[-1]):
        changed.append("")  # otherwise the next setting would continue this line
    return "".join(
        f"{line}\n" for line in (*changed, *(_setting_line(*setting) for setting in missing.items()))
    )


def _setting_line(name: str, value: str) -> str:
    """Return the line of a setting. Escapes keep a value from ending the line or continuing in the next."""
    text = value.translate(_ESCAPED)
    return f"{name}={text if text == text.lstrip(_SPACES) else chr(92) + text}"
