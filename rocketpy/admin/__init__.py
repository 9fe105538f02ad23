"""AdminClient and its parts: topics, groups, messages, dead letters, brokers, name servers and accounts."""

from rocketpy.admin.accounts import AccessRules, Account, Accounts, Policy, RulesVersion, User
from rocketpy.admin.admin_client import AdminClient
from rocketpy.admin.brokers import (
    Brokers,
    BrokerStatistic,
    BrokerSummary,
    ProducerMember,
    StatsPeriod,
)
from rocketpy.admin.dead_letters import DeadLetterQueues, DeadLetters, ResendProgress
from rocketpy.admin.drain import DrainPlan, DrainProgress
from rocketpy.admin.group_settings import GroupChanges, GroupSettings
from rocketpy.admin.groups import GroupLag, Groups, GroupSummary, Member, QueueLag
from rocketpy.admin.messages import Delivery, Messages, MessageTrack, TrackState
from rocketpy.admin.name_servers import NameServers
from rocketpy.admin.reset import OffsetChange, ResetTo
from rocketpy.admin.topics import QueueOffsets, TopicDescription, Topics
from rocketpy.admin.traces import TracedDelivery, TracedMessage, TracedSend, Traces
from rocketpy.client.message_index import QueryResult
from rocketpy.client.topic_configs import Permission, TopicSettings

__all__ = [
    "AccessRules",
    "Account",
    "Accounts",
    "AdminClient",
    "BrokerStatistic",
    "BrokerSummary",
    "Brokers",
    "DeadLetterQueues",
    "DeadLetters",
    "Delivery",
    "DrainPlan",
    "DrainProgress",
    "GroupChanges",
    "GroupLag",
    "GroupSettings",
    "GroupSummary",
    "Groups",
    "Member",
    "MessageTrack",
    "Messages",
    "NameServers",
    "OffsetChange",
    "Permission",
    "Policy",
    "ProducerMember",
    "QueryResult",
    "QueueLag",
    "QueueOffsets",
    "ResendProgress",
    "ResetTo",
    "RulesVersion",
    "StatsPeriod",
    "TopicDescription",
    "TopicSettings",
    "Topics",
    "TracedDelivery",
    "TracedMessage",
    "TracedSend",
    "Traces",
    "TrackState",
    "User",
]
