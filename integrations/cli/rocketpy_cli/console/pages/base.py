"""Pages: the base class of all pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.routing import Route

from rocketpy.admin import AdminClient
from rocketpy.errors import ConfigInvalid
from rocketpy.producer import Producer
from rocketpy.protocol.bodies import MessageQueue
from rocketpy_cli.console.resends import Resends
from rocketpy_cli.console.sampler import Sampler
from rocketpy_cli.console.views import Views, whole_number


@dataclass(frozen=True)
class Context:
    """The objects that pages share."""

    admin: AdminClient
    sampler: Sampler
    views: Views
    producer: Producer | None
    """None unless changes are allowed."""
    resends: Resends | None
    """None unless changes are allowed."""


class Pages:
    """The pages about one subject; subclasses add routes and handlers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes of these pages."""
        raise NotImplementedError


def required(values: Mapping[str, str], name: str, stripped: str | None = None) -> str:
    """Return a parameter of a request. Raises ConfigInvalid if it is missing or empty.

    stripped: characters to remove at both ends; None for all whitespace.
    """
    if value := values.get(name, "").strip(stripped):
        return value
    raise ConfigInvalid(f"the request has no {name}")


def queue_of(values: Mapping[str, str], topic: str) -> MessageQueue:
    """Return the queue that a request names. Raises ConfigInvalid."""
    return MessageQueue(topic, required(values, "broker"), whole_number("queue", required(values, "queue")))
