"""Look-ups of users and policies before a change, for commands and the console.

A broker that does not respond must not keep an operator from taking rights away at the others.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar, cast

from rocketpy.admin import AdminClient
from rocketpy.errors import BrokersFailed, RocketError, RouteNotFound
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX

T = TypeVar("T")


async def from_each(call: Awaitable[dict[str, T]]) -> tuple[dict[str, T], str]:
    """Return the results of the brokers that responded, and an error if some did not; empty for none.

    Raises what the call raises if no broker responded.
    """
    try:
        return await call, ""
    except BrokersFailed as error:
        if not error.results:
            raise
        return cast("dict[str, T]", error.results), str(error)


async def require_policy(
    admin: AdminClient, user: str, resource: str, *, is_default: bool, cluster: str | None = None
) -> None:
    """Raise RouteNotFound if no broker has a policy, since brokers report success for its deletion.

    If a broker did not respond, and no other one has the policy, its error is raised. Raises RocketError.
    """
    found, problem = await from_each(admin.accounts.policies(user, cluster=cluster))
    kinds = {
        policy.is_default
        for policies in found.values()
        for policy in policies
        if _spelled(policy.resource) == _spelled(resource)
    }
    if is_default in kinds:
        return
    if problem:
        raise RocketError(problem)
    kind, other = ("Default", "Custom") if is_default else ("Custom", "Default")
    hint = f"there is one of the kind {other}" if kinds else "rocketpy policy list shows the policies"
    raise RouteNotFound(f"user {user} has no policy of the kind {kind} for {resource}; {hint}")


def _spelled(resource: str) -> tuple[str, str]:
    """Return a resource so that two spellings that a broker treats as one are equal."""
    kind, _, name = resource.strip().partition(":")
    kind = kind.lower()
    return kind, name.removeprefix(RETRY_TOPIC_PREFIX) if kind == "group" else name
