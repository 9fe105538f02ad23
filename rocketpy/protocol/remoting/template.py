"""Frames whose headers differ in a few values only: their JSON text is made once and filled in with `%`.

That takes a fifth of the time of encoding a header (`tools.bench.send_path`). The text comes from the general
encoder, so both write the same bytes. A value that differs is a `msgspec.Raw` with a placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from rocketpy.protocol.remoting import header_json
from rocketpy.protocol.remoting.command import LANGUAGE, VERSION
from rocketpy.protocol.remoting.frame import PREFIX

_prefix: Final = PREFIX.pack

NUMBER: Final = Raw(b"%d")
"""A number, such as the code or the flag."""
DIGITS: Final = Raw(b'"%d"')
"""An ext field with a number."""
ASCII: Final = Raw(b'"%b"')
"""An ext field with a text that JSON does not escape, such as base64."""
JSON: Final = Raw(b"%b")
"""An ext field with any text; the value is its `json_text`."""

json_text: Final = msgspec.json.Encoder().encode
"""A text as JSON, with its quotes; control characters as ``\\u0001``."""


def fields_template(fields: Mapping[str, str | Raw]) -> bytes:
    """Return ext fields as JSON without the braces, sorted by name, with the placeholders in them."""
    texts = {
        name: value if isinstance(value, Raw) else Raw(json_text(value).replace(b"%", b"%%"))
        for name, value in sorted(fields.items())
    }
    return json_text(texts)[1:-1]


class HeaderTemplate:
    """Makes frames of one kind of command.

    code, flag, remark: of the command; `NUMBER` if the numbers differ. fields: from `fields_template`; None
    without ext fields.
    """

    __slots__ = ("_text",)

    def __init__(
        self, code: int | Raw, fields: bytes | None, flag: int | Raw = 0, remark: str | None = None
    ) -> None:
        ext = None if fields is None else Raw(b"{%b}" % fields)
        self._text = header_json.encode((code, NUMBER, flag, LANGUAGE, VERSION, remark, ext))

    def frame(self, values: tuple[int | bytes, ...], body: bytes = b"") -> bytes:
        """Return a whole frame.

        values: those of the placeholders, in the order of the text: code, ext fields, flag, opaque.
        """
        header = self._text % values
        size = len(header)
        return _prefix(4 + size + len(body), size) + header + body  # the codec JSON is 0
