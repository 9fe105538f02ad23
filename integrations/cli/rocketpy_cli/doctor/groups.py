"""Checks of consumer groups: their members, their lag and their dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.group_settings import GroupSettings
from rocketpy.errors import RocketError, RouteNotFound
from rocketpy.protocol.message.properties import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rocketpy.runtime.rate_limited_log import abbreviate
from rocketpy_cli.doctor.findings import Findings

_CONCURRENCY: Final = 16


async def check_groups(findings: Findings, admin: AdminClient, lag_max: int) -> None:
    """Check every consumer group. lag_max: the largest lag without a warning, in messages."""
    try:
        known = {group.name: group.brokers for group in await admin.groups.list()}
        dead = await admin.dead_letters.groups()
    except RocketError as error:
        findings.not_checked("groups", "consumer groups", error)
        return
    limit = asyncio.Semaphore(_CONCURRENCY)

    async def check(name: str, group: str, one: Callable[[Findings, str], Awaitable[None]]) -> Findings:
        own = Findings()
        try:
            async with limit:
                await one(own, group)
        except RocketError as error:
            own.not_checked(name, f"group {group}", error)
        return own

    async def lag(own: Findings, group: str) -> None:
        await _check_lag(own, admin, group, lag_max)

    async def members(own: Findings, group: str) -> None:
        await _check_members(own, admin, group)

    async def dead_letters(own: Findings, group: str) -> None:
        await _check_dead_letters(own, admin, group)

    async def retries(own: Findings, group: str) -> None:
        await _check_retries(own, admin, group, known[group])

    checks = [check("lag", group, lag) for group in known]
    checks += [check("members", group, members) for group in known]
    checks += [check("queues", group, retries) for group in known]
    checks += [check("dead letters", group, dead_letters) for group in dead]
    for own in await asyncio.gather(*checks):
        findings += own


async def _check_lag(findings: Findings, admin: AdminClient, group: str, lag_max: int) -> None:
    lag = await admin.groups.lag(group)
    subject = f"group {group}"
    beyond = [str(queue) for queue, found in lag.queues.items() if found.lag < 0]
    if beyond:
        text = f"its offset is beyond the end of {abbreviate(beyond)}; it skips messages up to its offset"
        remedy = f"Set its offsets: rocketpy group reset {group} TOPIC --to AGE (the time since the loss)"
        findings.problem("lag", subject, text, remedy)
    if lag.total <= lag_max:
        findings.ok("lag", subject, f"it is {lag.total} messages behind")
        return
    members = len(await admin.groups.members(group))
    text = f"it is {lag.total} messages behind, with {members} members online"
    if members:
        remedy = "Look for slow or failing handlers in its logs, or start more members (up to one per queue)"
    else:
        remedy = "Start its consumers; delete the group if it is no longer needed"
    findings.warning("lag", subject, text, remedy)


async def _check_members(findings: Findings, admin: AdminClient, group: str) -> None:
    conflicts = await admin.groups.conflicts(group)
    for text in conflicts:
        remedy = f"Correct the members, and restart them; see rocketpy group describe {group}"
        findings.problem("members", f"group {group}", text, remedy)
    if not conflicts:
        findings.ok("members", f"group {group}", "its members have the same subscriptions and settings")


async def _check_retries(
    findings: Findings, admin: AdminClient, group: str, brokers: Mapping[str, GroupSettings]
) -> None:
    if all(settings.retry_queues <= 1 for settings in brokers.values()):
        return  # RocketMQ's default; a retry topic has at least one queue
    try:
        topic = await admin.topics.describe(RETRY_TOPIC_PREFIX + group)
    except RouteNotFound:
        return  # the first member creates it, with the queues of the group
    for broker, found in topic.brokers.items():
        retry_queues = brokers[broker].retry_queues if broker in brokers else 0
        if retry_queues > found.read_queues:
            findings.problem(
                "queues",
                f"group {group} on {broker}",
                f"it has {retry_queues} retry queues, and its retry topic {found.read_queues} to read: "
                "brokers of RocketMQ store a part of its failed messages where no consumer reads them",
                f"Add the queues to the topic: rocketpy group alter {group} --retry-queues {retry_queues}",
            )


async def _check_dead_letters(findings: Findings, admin: AdminClient, group: str) -> None:
    described = await admin.topics.describe(DLQ_TOPIC_PREFIX + group)
    count = sum(queue.max_offset - queue.min_offset for queue in described.queues.values())
    if count:
        findings.warning(
            "dead letters",
            f"group {group}",
            f"there are {count} dead letters",
            f"Read them with: rocketpy dlq read {group}; correct the handler, and send them again with: "
            f"rocketpy dlq resend {group} --all",
        )
