"""Pages of users and policies, for brokers with ACL 2.0. Passwords never reach a browser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketpy.admin import Policy, User
from rocketpy.errors import ConfigInvalid, RocketError, RouteNotFound
from rocketpy_cli.console.guard import form_of
from rocketpy_cli.console.pages.base import Pages, required
from rocketpy_cli.console.views import link
from rocketpy_cli.users import from_each, require_policy

_PUT: Final = "put-policy"
_REMOVE: Final = "delete-policy"
_CHANGES: Final = ("enable", "disable", "delete", _PUT, _REMOVE)


class _Listed(NamedTuple):
    """A user, or a policy, and the brokers that have it."""

    value: User | Policy
    brokers: list[str]


class UserPages(Pages):
    """Users, their status and their policies."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/users", self.users),
            Route("/user", self.user),
            Route("/user-change", self.preview, methods=["GET"]),
            Route("/user-change", self.change, methods=["POST"]),
        ]

    async def users(self, request: Request) -> Response:
        """List the users of all brokers."""
        found, problem = await self._users()
        values = {"found": found, "problem": problem, "notice": request.query_params.get("done", "")}
        return self._context.views.page("users.html", values)

    async def user(self, request: Request) -> Response:
        """Show a user and its policies, at all brokers that respond."""
        query = request.query_params
        name = required(query, "name")
        values = await self._find(name)
        found, problem = await from_each(self._context.admin.accounts.policies(name))
        values |= {
            "policies": _merged(found),
            "policy_brokers": len(found),
            "problem": values["problem"] or problem,
            "notice": query.get("done", ""),
        }
        return self._context.views.page("user.html", values)

    async def preview(self, request: Request) -> Response:
        """Show what a change does. With changes allowed, the page confirms it."""
        query = request.query_params
        change, found = _change(query), await self._find(required(query, "name"))
        policy = _policy(query) if change in (_PUT, _REMOVE) else None
        if policy is not None and change == _REMOVE:
            await self._require(policy)
        return self._context.views.page("user_change.html", found | {"to": change, "policy": policy})

    async def change(self, request: Request) -> Response:
        """Change a user or a policy at all brokers."""
        form, accounts = form_of(request), self._context.admin.accounts
        change, name = _change(form), required(form, "name")
        await self._find(name)
        if change == "delete":
            await accounts.delete_user(name)
            return RedirectResponse(link("/users", done=change), HTTPStatus.SEE_OTHER)
        if change == _PUT:
            await accounts.put_policy(_policy(form))
        elif change == _REMOVE:
            policy = _policy(form)
            await self._require(policy)
            await accounts.delete_policies(name, policy.resource, is_default=policy.is_default)
        else:
            await accounts.put_user(name, is_enabled=change == "enable")
        return RedirectResponse(link("/user", name=name, done=change), HTTPStatus.SEE_OTHER)

    async def _users(self) -> tuple[list[_Listed], str]:
        """Return the users of all brokers, by name. If a broker has none, return its error, too."""
        try:
            found, problem = await from_each(self._context.admin.accounts.users())
        except RocketError as error:
            return [], str(error)
        return _merged({broker: users.values() for broker, users in found.items()}), problem

    async def _find(self, name: str) -> dict[str, Any]:
        """Return the values of a page about a user, which may differ from broker to broker.

        Raises RouteNotFound, or the error of a broker that may have the user.
        """
        found, problem = await from_each(self._context.admin.accounts.users())
        having = {broker: [users[name]] for broker, users in found.items() if name in users}
        if not having:
            raise RocketError(problem) if problem else RouteNotFound(f"no broker has a user {name!r}")
        variants, without = _merged(having), [broker for broker in found if broker not in having]
        names_brokers = len(variants) > 1 or bool(without or problem)
        return {
            "name": name,
            "variants": variants,
            "without": without,
            "names_brokers": names_brokers,
            "problem": problem,
        }

    async def _require(self, policy: Policy) -> None:
        """Raise RouteNotFound if no broker has a policy of this resource and kind."""
        admin = self._context.admin
        await require_policy(admin, policy.user, policy.resource, is_default=policy.is_default)


def _merged(found: Mapping[str, Iterable[User]] | Mapping[str, Iterable[Policy]]) -> list[_Listed]:
    """Return equal users or policies of several brokers once, with the names of the brokers."""
    brokers: dict[User | Policy, list[str]] = {}
    for broker, values in found.items():
        for value in values:
            brokers.setdefault(value, []).append(broker)
    return [_Listed(value, names) for value, names in brokers.items()]


def _change(values: Mapping[str, str]) -> str:
    change = required(values, "to")
    if change not in _CHANGES:
        raise ConfigInvalid(f"unknown change of a user {change!r}; choose one of {', '.join(_CHANGES)}")
    return change


def _policy(values: Mapping[str, str]) -> Policy:
    def words(name: str) -> tuple[str, ...]:
        return tuple(values.get(name, "").replace(",", " ").split())

    decision = values.get("decision", "Deny")  # which a deletion does not need
    if decision not in ("Allow", "Deny"):
        raise ConfigInvalid(f"unknown decision {decision!r}; choose Allow or Deny")
    return Policy(
        required(values, "name"),
        required(values, "resource"),
        words("actions"),
        decision == "Allow",
        words("from"),
        values.get("kind") == "Default",
    )
