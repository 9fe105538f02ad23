"""Differences between the members of a consumer group that make it lose or repeat messages.

Queues are shared between the members, and each member applies its own subscriptions to its share. So all of
them must have the same ones. No I/O: brokers, members and administration tools pass what they know.

Source: RocketMQ 4.6 ConsumerRunningInfo analyzeSubscription; there, only ``mqadmin consumerStatus`` compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rocketpy.protocol.bodies import (
    ConsumerData,
    SubscriptionData,
)
from rocketpy.protocol.message.properties import RETRY_TOPIC_PREFIX
from rocketpy.runtime.rate_limited_log import abbreviate

CLIENT_ID: Final = "client_id"
"""The kind of a conflict: several connections have one client id."""

_BROADCASTING: Final = "BROADCASTING"
_SHOWN_MAX: Final = 3
"""Members and topics that a text names; the others are counted."""
_CHARACTERS_MAX: Final = 200
"""Longer names and expressions are cut, because they may come from a peer."""

_Subscription = tuple[str, str, str | frozenset[str]]


class MemberSettings(NamedTuple):
    """The settings that all members of a group must share, in a form that can be compared.

    Fields are None if they are unknown, which differs from nothing.
    """

    subscriptions: frozenset[_Subscription] | None
    consume_type: str | None
    message_model: str | None
    consume_from_where: str | None


class MemberView(NamedTuple):
    """A connection of a member."""

    client_id: str
    address: str
    settings: MemberSettings | None
    """None if they are unknown."""


class Conflict(NamedTuple):
    """A difference."""

    kind: str
    """`CLIENT_ID`, or a field of `MemberSettings`."""
    text: str
    client_id: str = ""
    """The one that is shared."""


def texts_of(conflicts: Iterable[Conflict]) -> list[str]:
    """Return a text for each conflict. Several brokers see different ports of one client."""
    return list({(one.kind, one.client_id): one.text for one in conflicts}.values())


_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "subscriptions": (
        "different subscriptions, so some messages reach no member",
        "give every member the same topics and filters",
    ),
    "message_model": (
        "different message models, so a clustering member gets a share of the queues only",
        "give every member the same MessageModel",
    ),
    "consume_type": (
        "push and pull consumers (CONSUME_PASSIVELY and CONSUME_ACTIVELY), which share the queues",
        "use one kind of consumer for each group",
    ),
    "consume_from_where": (
        "different positions for queues without an offset",
        "give every member the same ConsumeFrom",
    ),
}
"""What members of a group have that differs, and the remedy."""


def settings_of(data: ConsumerData) -> MemberSettings:
    """Return the settings in a member's heartbeat. The retry topic is left out: not all kinds consume it."""
    return MemberSettings(
        subscriptions_of(data.subscription_data_set),
        data.consume_type,
        data.message_model,
        data.consume_from_where,
    )


def subscriptions_of(subscriptions: Iterable[SubscriptionData]) -> frozenset[_Subscription]:
    """Return subscriptions in a form in which equal filters are equal."""
    return frozenset(
        (one.topic, one.expression_type or "TAG", _filter(one))
        for one in subscriptions
        if not one.topic.startswith(RETRY_TOPIC_PREFIX)
    )


def _filter(subscription: SubscriptionData) -> str | frozenset[str]:
    text = (subscription.sub_string or "*").strip() or "*"
    if subscription.expression_type not in ("TAG", "", None) or text == "*":
        return text
    return frozenset(tag.strip() for tag in text.split("||")) - {""}


def find_conflicts(group: str, members: Sequence[MemberView]) -> list[Conflict]:
    """Return the differences between the members of a group, and client ids that several connections have."""
    found = list(_shared_ids(group, members))
    known = [(member.client_id, member.settings) for member in members if member.settings is not None]
    for kind, (what, remedy) in _KINDS.items():
        holders: defaultdict[Hashable, list[str]] = defaultdict(list)
        for client_id, settings in known:
            value = getattr(settings, kind)
            if value is not None and client_id not in holders[value]:
                holders[value].append(client_id)
        if len(holders) > 1:
            show = _subscriptions_text if kind == "subscriptions" else str
            found.append(
                Conflict(
                    kind,
                    f"members of group {group[:_CHARACTERS_MAX]} have {what}: "
                    f"{_parts(holders, show)}; {remedy}",
                )
            )
    return found


def _shared_ids(group: str, members: Sequence[MemberView]) -> Iterator[Conflict]:
    addresses: defaultdict[str, list[str]] = defaultdict(list)
    for member in members:
        if member.settings is not None and member.settings.message_model == _BROADCASTING:
            continue  # it gets all queues. In Java, all broadcasting clients of a host have one id
        addresses[member.client_id].append(member.address)
    for client_id, found in addresses.items():
        if len(found) > 1:
            text = (
                f"{len(found)} members of group {group[:_CHARACTERS_MAX]} have the client id "
                f"{client_id[:_CHARACTERS_MAX]} ({abbreviate(found)}), so they get the same queues; "
                "give each client its own instance_name, or none"
            )
            yield Conflict(CLIENT_ID, text, client_id)


def _parts(holders: Mapping[Hashable, Sequence[str]], show: Callable[..., str]) -> str:
    return "; ".join(
        _shortened_parts([f"{abbreviate(ids)} has {show(value)}" for value, ids in holders.items()])
    )


def _shortened_parts(parts: list[str]) -> list[str]:
    if len(parts) <= _SHOWN_MAX:
        return parts
    return [*parts[:_SHOWN_MAX], f"{len(parts) - _SHOWN_MAX} other variants"]


def _subscriptions_text(subscriptions: frozenset[_Subscription]) -> str:
    shown = [
        f"{topic} {text if isinstance(text, str) else ' || '.join(sorted(text))!r}"
        for topic, _, text in sorted(subscriptions, key=lambda one: one[:2])
    ]
    return abbreviate(shown) or "no subscription"
