"""The body of a message: kombu's message with its headers and properties, as JSON."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kombu.utils.json import dumps, loads

Payload = dict[str, Any]
"""A message as kombu's virtual transports pass it on."""


def encode(payload: Mapping[str, Any]) -> bytes:
    """Return the body of a RocketMQ message."""
    text: str = dumps(payload)
    return text.encode()


def decode(body: bytes) -> Payload:
    """Return kombu's message. Any other body becomes the body of a message without headers."""
    try:
        payload = loads(body.decode())
    except Exception:  # noqa: BLE001 - kombu's decoders of types raise anything for what they do not expect
        payload = None
    if _is_readable(payload):
        known: Payload = payload
        return known
    return {
        "body": base64.b64encode(body).decode(),
        "content-type": "application/data",
        "content-encoding": "binary",
        "headers": {},
        "properties": {"body_encoding": "base64"},
    }


def _is_readable(payload: object) -> bool:
    """Return whether kombu can make a message of this; otherwise it would raise in the loop of a worker."""
    if not isinstance(payload, dict) or not isinstance(payload.get("body"), str | bytes):
        return False
    properties, headers = payload.get("properties"), payload.get("headers")
    if not isinstance(properties, dict) or not isinstance(headers, dict | None):
        return False
    encoding = properties.get("body_encoding")
    try:
        if encoding == "base64":
            base64.b64decode(payload["body"])
    except ValueError:
        return False
    return encoding in (None, "", "utf-8", "base64")


def address(payload: Payload) -> tuple[str, str]:
    """Return the exchange and the routing key to which a message was published."""
    info = payload["properties"].get("delivery_info")
    info = info if isinstance(info, dict) else {}
    return str(info.get("exchange", "")), str(info.get("routing_key", ""))


def mark_delivered(payload: Payload, queue: str, tag: str, *, redelivered: bool) -> None:
    """Set what differs in each delivery of a message."""
    properties = payload["properties"]
    properties["delivery_tag"] = tag
    if not isinstance(properties.get("delivery_info"), dict):
        properties["delivery_info"] = {}
    properties["delivery_info"].update(queue=queue, redelivered=redelivered)
    if redelivered:
        payload["redelivered"] = True


def due_time(payload: Mapping[str, Any]) -> datetime | None:
    """Return the time of the header ``eta``, which Celery sets for `eta` and `countdown`; None without one.

    A time without a zone is in UTC, as in Celery.
    """
    headers = payload.get("headers")
    eta = headers.get("eta") if isinstance(headers, Mapping) else None
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None
    if not isinstance(eta, datetime):
        return None
    return eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)


def task_keys(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the id of a Celery task, by which operators find the message."""
    headers = payload.get("headers")
    task_id = headers.get("id") if isinstance(headers, Mapping) else None
    return (task_id,) if isinstance(task_id, str) and task_id and not any(map(str.isspace, task_id)) else ()


def expiry_ms(payload: Mapping[str, Any], born_ms: int) -> float:
    """Return when a message expires by its property ``expiration``, in ms since 1970; infinity without it."""
    expiration = payload["properties"].get("expiration")
    try:
        return math.inf if expiration is None else born_ms + int(expiration)
    except (TypeError, ValueError, OverflowError):
        return math.inf
