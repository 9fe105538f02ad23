"""The pages of the console. Each class has the routes of one subject; their paths have no parameters."""

from collections.abc import Callable
from typing import Final

from rocketpy_cli.console.pages.base import Context, Pages
from rocketpy_cli.console.pages.brokers import BrokerPages
from rocketpy_cli.console.pages.cluster import ClusterPages
from rocketpy_cli.console.pages.dead_letters import DeadLetterPages
from rocketpy_cli.console.pages.groups import GroupPages
from rocketpy_cli.console.pages.messages import MessagePages
from rocketpy_cli.console.pages.topics import SendPages, TopicPages
from rocketpy_cli.console.pages.traces import TracePages
from rocketpy_cli.console.pages.users import UserPages

__all__ = ["ALL_PAGES"]

ALL_PAGES: Final[tuple[Callable[[Context], Pages], ...]] = (
    ClusterPages,
    BrokerPages,
    TopicPages,
    GroupPages,
    MessagePages,
    TracePages,
    DeadLetterPages,
    SendPages,
    UserPages,
)
