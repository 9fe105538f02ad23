"""AdminClient: topics, messages and dead letters, for programs without a producer or consumer.

Source: RocketMQ 4.6 DefaultMQAdminExt.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketpy.admin.accounts import Accounts
from rocketpy.admin.brokers import Brokers
from rocketpy.admin.dead_letters import DeadLetterQueues, DeadLetters
from rocketpy.admin.groups import Groups
from rocketpy.admin.messages import Messages
from rocketpy.admin.name_servers import NameServers
from rocketpy.admin.requests import AdminRequests
from rocketpy.admin.topics import Topics
from rocketpy.client.admin import AdminApi
from rocketpy.client.lifecycle import BoundToClient
from rocketpy.config import ClientConfig
from rocketpy.message.message import MessageExt
from rocketpy.protocol.bodies import MessageQueue
from rocketpy.results import SendResult


class AdminClient(AdminApi, BoundToClient):
    """Queries name servers and brokers, creates topics, and reads and re-sends dead letters.

        async with AdminClient("127.0.0.1:9876") as admin:
            await admin.topics.create("Orders", 8)

    Args:
        namesrv: As for `Producer`.
        client: As for `Producer`.

    Attributes:
        topics: Topics; see `rocketpy.admin.topics.Topics`.
        messages: Stored messages; see `rocketpy.admin.messages.Messages`.
        dead_letters: Dead letters; see `rocketpy.admin.dead_letters.DeadLetterQueues`.
        brokers: Brokers; see `rocketpy.admin.brokers.Brokers`.
        name_servers: Name servers; see `rocketpy.admin.name_servers.NameServers`.
        accounts: Accounts of access control; see `rocketpy.admin.accounts.Accounts`.
        groups: Consumer groups; see `rocketpy.admin.groups.Groups`.
    """

    def __init__(self, namesrv: str | None = None, *, client: ClientConfig | None = None) -> None:
        super().__init__("the admin client", namesrv, client)
        requests = AdminRequests(self._running)
        self.topics: Topics = Topics(requests)
        self.messages: Messages = Messages(requests)
        self.dead_letters: DeadLetterQueues = DeadLetterQueues(requests)
        self.brokers: Brokers = Brokers(requests)
        self.name_servers: NameServers = NameServers(requests)
        self.accounts: Accounts = Accounts(requests)
        self.groups: Groups = Groups(requests)

    async def fetch_dead_letters(
        self, group: str, max_count: int = 1000, *, offsets: Mapping[MessageQueue, int] | None = None
    ) -> DeadLetters:
        """Read the dead letters of a group: the messages in its topic ``%DLQ%group``.

        Each queue is read up to its end at the time of the call, oldest messages first, one queue after the
        other. Reading removes nothing. Returns no messages if the group has no dead-letter topic.

        Brokers before RocketMQ 4.9 create that topic for writing only. It is made readable first,
        permanently, which needs the keys of an administrator under access control.

        Args:
            group: The consumer group.
            max_count: The maximum number of messages.
            offsets: Where to begin in each queue: `DeadLetters.next_offsets` of an earlier call. Other queues
                are read from their oldest message on.

        Raises:
            GroupInvalid: The name of the group is invalid.
            ConfigInvalid: `max_count` is below 1.
            RouteNotFound: A broker has no master.
        """
        return await self.dead_letters.fetch(group, max_count, offsets=offsets)

    async def resend_dead_letter(self, message: MessageExt) -> SendResult:
        """Send a dead letter to its group again, and to no other group, as if it had never failed.

        Consumers of the group get it under its original topic, with its body, keys, tags, properties and
        unique id, and with no retries. It is sent once, to the broker of the dead letter. The dead letter
        stays until it expires. A message that could not be decompressed is sent with its raw body.

        Args:
            message: A message from `fetch_dead_letters`.

        Raises:
            MessageInvalid: The message is not a dead letter, or is damaged.
            TransportError: No response arrived; see `outcome` for whether it may be stored.
            BrokerError: The broker rejected it, for instance because the group does not exist any more.
        """
        return await self.dead_letters.resend(message)
