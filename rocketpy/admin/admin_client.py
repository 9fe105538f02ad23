"""AdminClient: administers a cluster, and reads and re-sends its messages.

Source: RocketMQ 4.6 DefaultMQAdminExt.
"""

from __future__ import annotations

from rocketpy.admin.accounts import Accounts
from rocketpy.admin.brokers import Brokers
from rocketpy.admin.dead_letters import DeadLetterQueues
from rocketpy.admin.groups import Groups
from rocketpy.admin.messages import Messages
from rocketpy.admin.name_servers import NameServers
from rocketpy.admin.requests import AdminRequests
from rocketpy.admin.topics import Topics
from rocketpy.client.admin import AdminApi
from rocketpy.client.lifecycle import BoundToClient
from rocketpy.config import ClientConfig


class AdminClient(AdminApi, BoundToClient):
    """Shows and changes topics, groups, brokers, name servers and accounts; reads and re-sends messages.

        async with AdminClient("127.0.0.1:9876") as admin:
            await admin.topics.create("Orders", 8)

    Args:
        namesrv: As for `Producer`.
        client: As for `Producer`.
    """

    def __init__(self, namesrv: str | None = None, *, client: ClientConfig | None = None) -> None:
        super().__init__("the admin client", namesrv, client)
        requests = AdminRequests(self._running_client)
        self.topics: Topics = Topics(requests)
        """Topics; see `rocketpy.admin.topics.Topics`."""
        self.messages: Messages = Messages(requests)
        """Stored messages; see `rocketpy.admin.messages.Messages`."""
        self.dead_letters: DeadLetterQueues = DeadLetterQueues(requests)
        """Dead letters; see `rocketpy.admin.dead_letters.DeadLetterQueues`."""
        self.brokers: Brokers = Brokers(requests)
        """Brokers; see `rocketpy.admin.brokers.Brokers`."""
        self.name_servers: NameServers = NameServers(requests)
        """Name servers; see `rocketpy.admin.name_servers.NameServers`."""
        self.accounts: Accounts = Accounts(requests)
        """Accounts of access control; see `rocketpy.admin.accounts.Accounts`."""
        self.groups: Groups = Groups(requests)
        """Consumer groups; see `rocketpy.admin.groups.Groups`."""
