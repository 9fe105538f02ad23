"""Rights that requests need, and that accounts (ACL 1.0) and users (ACL 2.0) have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, Flag
from typing import Final, NamedTuple, Protocol

from rocketpy.message import REPLY_TOPIC_SUFFIX
from rocketpy.protocol.bodies.topic import SYSTEM_GROUP_PREFIX
from rocketpy.protocol.remoting.command import Command

_INTERNAL_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_")
_INTERNAL_TOPICS: Final = frozenset(
    {"SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT"}
)


class Right(Flag):
    """What an account or a user may do with a topic, a group or the cluster.

    Accounts of ACL 1.0 have PUB and SUB only. Source: RocketMQ 4.6.0 Permission, 5.3.3 Action.
    """

    DENY = 0
    PUB = 4
    SUB = 8
    CREATE = 16
    UPDATE = 32
    DELETE = 64
    GET = 128
    LIST = 256


ALL_RIGHTS: Final = (
    Right.PUB | Right.SUB | Right.CREATE | Right.UPDATE | Right.DELETE | Right.GET | Right.LIST
)


class Subject(Enum):
    """Kind of the name in a required right."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    """The name is not used: a server has one cluster."""
    CLIENT = "client id"
    """Client id of the sender."""
    REQUESTER = "replies to client"
    """Client id of the requester, which receives the reply."""


class RequiredRight(NamedTuple):
    """One right that a request needs."""

    name: str
    kind: Subject
    right: Right
    """What an account of ACL 1.0 needs: one of these is enough. Ignored for CLIENT and REQUESTER."""
    actions: Right
    """What a user of ACL 2.0 needs: one of these is enough. DENY: nothing."""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}"


def is_internal_topic(name: str) -> bool:
    """Whether a topic is of the broker itself, so that only a right that names it applies."""
    return (
        name in _INTERNAL_TOPICS or name.startswith(_INTERNAL_PREFIXES) or name.endswith(REPLY_TOPIC_SUFFIX)
    )


def is_internal_group(name: str) -> bool:
    """Whether a group is of the broker itself, whose offsets say what of its own topics is done."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


class Principal(Protocol):
    """Who signs requests: an account of ACL 1.0 or a user of ACL 2.0."""

    @property
    def access_key(self) -> str:
        """Its name."""

    @property
    def secret_key(self) -> bytes:
        """Key of its signatures."""

    @property
    def is_admin(self) -> bool:
        """Whether it is an administrator, or a user of the type Super."""

    @property
    def is_limited(self) -> bool:
        """Whether its rights are checked. If not, it may do everything."""

    @property
    def listed_topics(self) -> Iterable[str]:
        """Topics, or beginnings of topics, that its rights name."""

    def is_exempt_at(self, host: str) -> bool:
        """Whether its requests from this host need no signature and no right."""

    def refusal(self, required: RequiredRight, host: str) -> str | None:
        """Return why a client at this host lacks a right to a topic, a group or the cluster; else None."""


class Rules(Protocol):
    """The rules of a server: an `AccessList` of ACL 1.0 or a `UserList` of ACL 2.0."""

    @property
    def accounts(self) -> Mapping[str, Principal]:
        """Who may sign requests, by name."""

    @property
    def delegates(self) -> bool:
        """Whether others than administrators may have rights to administrate."""

    def is_on_allow_list(self, host: str) -> bool:
        """Whether a client at this host may do everything without a signature."""

    def why_unknown(self, access_key: str | None) -> str:
        """Return why a request with this name, or without one, is rejected."""

    def rejection(self, request: Command, reason: str) -> Command:
        """Return the response that clients expect."""


def may_read_from(reader: Principal, host: str, sender: Principal | None, sender_host: str) -> bool:
    """Whether one client may read at least one topic that another may send to.

    sender: None stands for a client that may send to all topics.
    """
    if not reader.is_limited:
        return True
    sends_anywhere = sender is None or not sender.is_limited
    names = {"", *reader.listed_topics}  # the empty name: a topic that nobody lists
    if sender is not None and not sends_anywhere:
        names.update(sender.listed_topics)

    def may(principal: Principal | None, name: str, right: Right, at: str) -> bool:
        wanted = RequiredRight(name, Subject.TOPIC, right, right)
        return principal is None or not principal.is_limited or principal.refusal(wanted, at) is None

    return any(
        may(reader, name, Right.SUB, host) and may(sender, name, Right.PUB, sender_host) for name in names
    )
