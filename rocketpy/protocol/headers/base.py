"""Base class of command headers: how their fields travel as text.

A header is the set of named fields (RocketMQ's *ext fields*) of one request or response code. On the wire
every value is text; in a `Header`, each value has the annotated type. A header is read with msgspec in its
non-strict mode, which turns the text into the annotated type and rejects values that do not fit::

    msgspec.convert({"topic": "T", "queueId": "3"}, GetMaxOffsetRequestHeader, strict=False)

Differs from RocketMQ, which logs a field that it cannot parse, leaves it null and fails later.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A Java int; values outside its range are rejected."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A Java long; values outside its range are rejected."""


def ext_text(value: object) -> str:
    """Return the wire text of one field's value: ``true``/``false`` for a bool, digits for an int."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


class Header(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Base of every header: a plain value with the Python names of RocketMQ's fields.

    Optional fields are None when absent and then not written. Fields that a header does not know are
    skipped when it is read, such as AccessKey and Signature, which belong to the whole command.
    """

    def ext_fields(self) -> dict[str, str]:
        """Return the text of each field by its name on the wire. Fields that are None are left out."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {
            name: value if type(value) is str else ext_text(value)
            for name, value in fields.items()
            if value is not None
        }
