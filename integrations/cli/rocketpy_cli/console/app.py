"""Console: the application and its connection to the cluster."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Final, Self

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from rocketpy.admin import AdminClient
from rocketpy.errors import BrokerError, RocketError, RouteNotFound, UsageError
from rocketpy.producer import Producer
from rocketpy.protocol.codes import ResponseCode
from rocketpy.runtime.tasks import Tasks
from rocketpy_cli.console.guard import Guard
from rocketpy_cli.console.pages import ALL_PAGES
from rocketpy_cli.console.pages.base import Context
from rocketpy_cli.console.resends import Resends
from rocketpy_cli.console.sampler import Sampler
from rocketpy_cli.console.settings import ConsoleSettings
from rocketpy_cli.console.views import CONSOLE_DIRECTORY, Views

log: Final = logging.getLogger("rocketpy.console")

_PRODUCER_GROUP: Final = "rocketpy_console"
_MISSING: Final = frozenset(
    {ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
)


class Console:
    """A console for one cluster: an async context manager with an ASGI application.

    Args:
        settings: The settings of the console.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._tasks = Tasks("console")
        self.views: Final = Views(settings)
        """Renders the pages."""
        admin = AdminClient(client=settings.client)
        producer = Producer(_PRODUCER_GROUP, client=settings.client) if settings.allow_changes else None
        self.sampler: Final = Sampler(admin, settings.interval_s)
        """Collects rates and lag while the context is open."""
        self._clients = [admin, *([] if producer is None else [producer])]
        resends = Resends(admin, self._tasks) if settings.allow_changes else None
        context = Context(admin, self.sampler, self.views, producer, resends)
        routes = [route for pages in ALL_PAGES for route in pages(context).routes()]
        app = Starlette(
            routes=[*routes, Mount("/static", StaticFiles(directory=CONSOLE_DIRECTORY / "static"))],
            exception_handlers={
                RocketError: self._show_error,
                HTTPException: self._show_error,
                Exception: self._show_error,
            },
        )
        self.asgi: Final = Guard(app, settings)
        """The ASGI application. It can serve requests while the context is open."""
        self.views.csrf_token = self.asgi.csrf_token

    async def __aenter__(self) -> Self:
        """Connect to the cluster and begin to collect. Raises RocketError if no name server responds."""
        async with AsyncExitStack() as stack:
            for client in self._clients:
                await stack.enter_async_context(client)
            stack.push_async_callback(self._tasks.close)
            self._tasks.every(self.sampler.interval_s, self.sampler.run, "sampler", first_s=0)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop collecting, and close the connections."""
        await self._stack.aclose()

    def _show_error(self, request: Request, error: Exception) -> Response:
        status = _status(error)
        if isinstance(error, HTTPException):
            text = "There is no such page." if status == HTTPStatus.NOT_FOUND else error.detail
        elif isinstance(error, RocketError):
            text = str(error)
        else:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
            text = "The console failed. Its log has the details."
        return self.views.page("error.html", {"title": HTTPStatus(status).phrase, "text": text}, status)


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, RouteNotFound) or (isinstance(error, BrokerError) and error.code in _MISSING):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, UsageError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.BAD_GATEWAY if isinstance(error, RocketError) else HTTPStatus.INTERNAL_SERVER_ERROR
