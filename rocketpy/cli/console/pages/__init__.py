"""The pages of the console. Each class has the routes of one subject; their paths have no parameters."""

from collections.abc import Callable
from typing import Final

from rocketpy.cli.console.pages.base import Context, Pages
from rocketpy.cli.console.pages.brokers import BrokerPages
from rocketpy.cli.console.pages.cluster import ClusterPages
from rocketpy.cli.console.pages.dead_letters import DeadLetterPages
from rocketpy.cli.console.pages.groups import GroupPages
from rocketpy.cli.console.pages.messages import MessagePages
from rocketpy.cli.console.pages.topics import SendPages, TopicPages
from rocketpy.cli.console.pages.traces import TracePages

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
)
