"""Guard: checks every request to the console before a page handles it.

The checks are here, and not in pages, so that a new page cannot forget one:

1. The Host header names this console (against DNS rebinding).
2. The request has the session cookie, which the link with the token sets. Browsers share cookies between the
   ports of a host, so the cookie's name has the port.
3. A request that may change something needs ``--allow-changes``, and the CSRF token in its form.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from rocketpy_cli.console.settings import ConsoleSettings

FORM_BYTES_MAX: Final = 1 << 20
"""Maximum size of a form. A form may contain the body of a message to send."""
_FIELDS_MAX: Final = 50
_FORM: Final = "rocketpy.form"
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_SAFE: Final = frozenset({"GET", "HEAD"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Checks each request, and adds the security headers to each response.

    Args:
        app: The application with the pages.
        settings: The console's settings.
    """

    def __init__(self, app: Starlette, settings: ConsoleSettings) -> None:
        self.app: Final = app
        self.csrf_token: Final = secrets.token_urlsafe(32)
        self._settings = settings
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI)."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] != "http":
            raise ValueError(f"the console handles HTTP requests, not {scope['type']}")
        rejection = await self._rejection(Request(scope, receive))
        await (rejection or self.app)(scope, receive, send_with_headers)

    async def _rejection(self, request: Request) -> Response | None:
        """Return the response that rejects a request; None for an accepted request."""
        host = request.headers.get("host", "")
        if not self._settings.is_own_host(host):
            text = f"This console does not serve the host {host!r}. Name it with --host-name if it should."
            return _rejected(HTTPStatus.MISDIRECTED_REQUEST, text)
        cookie = f"rocketpy_console_{(request.scope.get('server') or ('', 0))[1]}"
        token = request.query_params.get("token")
        if request.method == "GET" and token is not None and _equal(token, self._settings.token):
            path = request.scope["path"].lstrip("/\\")  # //host would lead to another site
            redirect = RedirectResponse(f"/{path}", HTTPStatus.SEE_OTHER)
            redirect.set_cookie(cookie, self._session, httponly=True, samesite="strict")
            return redirect
        if not _equal(request.cookies.get(cookie, ""), self._session):
            text = "Open the link that `rocketpy console` printed when it started: it contains the token."
            return _rejected(HTTPStatus.UNAUTHORIZED, text)
        return None if request.method in _SAFE else await self._rejected_change(request)

    async def _rejected_change(self, request: Request) -> Response | None:
        """Check a request that may change something; put its form into the scope for `form_of`."""
        if not self._settings.allow_changes:
            text = "This console is read-only. Start it with --allow-changes to change the cluster."
            return _rejected(HTTPStatus.FORBIDDEN, text)
        if request.headers.get("content-type", "").partition(";")[0].strip() != _FORM_TYPE:
            return _rejected(HTTPStatus.FORBIDDEN, "This request has no form, and so no CSRF token.")
        form = await _read_form(request)
        if form is None:
            text = f"The form is larger than {FORM_BYTES_MAX} bytes, has too many fields or is not UTF-8."
            return _rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        if not _equal(form.get("csrf", ""), self.csrf_token):
            text = "The CSRF token is missing or old. Load the page with the form again."
            return _rejected(HTTPStatus.FORBIDDEN, text)
        request.scope[_FORM] = form
        return None


def form_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a form that the guard has accepted."""
    form: Mapping[str, str] = request.scope[_FORM]
    return form


async def _read_form(request: Request) -> dict[str, str] | None:
    """Return the fields of a form; None if the form is too large or malformed."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            return None
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX
        )
    except ValueError:
        return None
    return dict(fields)


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _rejected(status: HTTPStatus, text: str) -> PlainTextResponse:
    return PlainTextResponse(f"{text}\n", status)
