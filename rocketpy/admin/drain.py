"""Moves producers from a broker to others before the broker is stopped.

Uses only requests that RocketMQ's servers support. Name servers hide the broker from producers. It continues
to serve requests until producers have refreshed their routes, it stores no more messages, and its slaves
have all messages. ``rocketpy-broker stop --drain`` does the same within a rocketpy broker. It waits only for
sends of producers, not for retries and delayed messages.

Source: RocketMQ has the first step only: wipeWritePerm of mqadmin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rocketpy.admin.requests import AdminRequests, masters_of
from rocketpy.config import check_number
from rocketpy.errors import BrokerError, RocketError, RouteNotFound
from rocketpy.protocol.bodies import (
    MASTER_ID,
    PERM_WRITE,
    KVTable,
    TopicConfigSerializeWrapper,
    decode_settings,
)
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import WipeWritePermOfBrokerRequestHeader

log: Final = logging.getLogger("rocketpy.admin")

_POLL_S: Final = 1.0


class DrainPlan(NamedTuple):
    """The effects of a drain of a broker."""

    broker: str
    """The name of the broker."""
    cluster: str
    """The name of its cluster."""
    address: str
    """The address of its master."""
    topics: tuple[str, ...]
    """The topics whose producers move to other brokers, sorted."""
    unmovable_topics: tuple[str, ...]
    """The topics that no other broker offers. Sends to them fail until the broker is back."""
    slaves: tuple[str, ...]
    """The addresses of its slaves. The drain waits for them, unless `is_elected`."""
    is_elected: bool
    """Whether it leads a DLedger group. After its stop, another peer becomes the leader."""
    is_hidden: bool
    """Whether name servers already hide it from producers."""


class DrainProgress(NamedTuple):
    """The progress of a drain."""

    stored: int
    """The number of messages that the broker has stored since producers were moved."""
    per_second: float
    """The rate of stored messages since the last report; 0 while slaves are copying."""
    lag_bytes: int
    """How many bytes the slowest slave is behind; 0 while the broker still stores messages."""


class Drain:
    """The drain of one broker."""

    def __init__(self, requests: AdminRequests, broker: str) -> None:
        self._requests = requests
        self._broker = broker

    async def plan(self) -> DrainPlan:
        """Look up what the drain would do. See `Brokers.plan_drain`."""
        found = await self._requests.cluster()
        data = found.broker_addr_table.get(self._broker)
        if data is None or MASTER_ID not in data.broker_addrs:
            masters = ", ".join(
                name for name, one in found.broker_addr_table.items() if MASTER_ID in one.broker_addrs
            )
            raise RouteNotFound(
                f"the name server knows no master of broker {self._broker}; it knows: {masters or 'none'}"
            )
        masters_now = masters_of(found.broker_addr_table.values())
        tables = await self._requests.call_all(
            {name: address for name, address in masters_now.items() if address is not None},
            RequestCode.GET_ALL_TOPIC_CONFIG,
            decode=lambda response: TopicConfigSerializeWrapper.decode(response.body).topic_config_table,
        )
        writable = {
            name: {topic for topic, config in table.items() if config.perm & PERM_WRITE}
            for name, table in tables.items()
        }
        hidden = {name for name, topics in writable.items() if await self._is_hidden(name, topics)}
        own = writable.pop(self._broker) & set(await self._requests.running().name_servers.topics())
        elsewhere = set[str]().union(*(topics for name, topics in writable.items() if name not in hidden))
        address = data.broker_addrs[MASTER_ID]
        return DrainPlan(
            broker=self._broker,
            cluster=next((of for of, names in found.cluster_addr_table.items() if self._broker in names), ""),
            address=address,
            topics=tuple(sorted(own & elsewhere)),
            unmovable_topics=tuple(sorted(own - elsewhere)),
            slaves=tuple(one for id_, one in sorted(data.broker_addrs.items()) if id_ != MASTER_ID),
            is_elected=await self._is_elected(address),
            is_hidden=self._broker in hidden,
        )

    async def _is_hidden(self, broker: str, topics: Iterable[str]) -> bool:
        """Whether name servers hide a broker from producers.

        They hide all of its topics at once, so the first topic with a route shows it.
        """
        for topic in sorted(topics):
            try:
                route = await self._requests.running().name_servers.route(topic)
            except RouteNotFound:  # a topic of the broker itself, such as that of delayed messages
                continue
            for data in route.queue_datas:
                if data.broker_name == broker:
                    return not data.perm & PERM_WRITE
        return False

    async def _is_elected(self, address: str) -> bool:
        response = await self._requests.call(address, self._broker, RequestCode.GET_BROKER_CONFIG)
        return decode_settings(response.body).get("enableDLegerCommitLog") == "true"

    async def run(
        self, wait_ms: float, quiet_ms: float, on_progress: Callable[[DrainProgress], object] | None
    ) -> DrainPlan:
        """Move the producers, and wait for the rest. See `Brokers.drain`."""
        check_number("wait_ms", wait_ms, 0)
        check_number("quiet_ms", quiet_ms, 1)
        plan = await self.plan()
        if not plan.topics:
            reason = (
                "no other broker has its topics, so its producers would fail"
                if plan.unmovable_topics
                else "it has no writable topics, so there are no producers to move"
            )
            raise RouteNotFound(f"broker {self._broker} was not hidden: {reason}")
        header = WipeWritePermOfBrokerRequestHeader(broker_name=self._broker)
        await self._requests.call_all_namesrv(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        report = on_progress or (lambda _: None)
        stored = await self._until_quiet(plan.address, wait_ms / 1000, quiet_ms / 1000, report)
        if not plan.is_elected:  # DLedger confirms a send only after a majority of peers has stored it
            await self._until_copied(plan, stored, report)
        return plan

    async def _until_quiet(
        self, address: str, wait_s: float, quiet_s: float, report: Callable[[DrainProgress], object]
    ) -> int:
        """Wait until the broker stores no more messages; return how many it has stored meanwhile."""
        loop = asyncio.get_running_loop()
        begun = changed = sampled = loop.time()
        first = last = await self._stored(address)
        while True:
            await asyncio.sleep(min(_POLL_S, quiet_s / 2))
            total, now = await self._stored(address), loop.time()
            report(DrainProgress(total - first, (total - last) / (now - sampled), 0))
            if total != last:
                changed = now
            last, sampled = total, now
            if now - begun >= wait_s and now - changed >= quiet_s:
                return total - first

    async def _until_copied(
        self, plan: DrainPlan, stored: int, report: Callable[[DrainProgress], object]
    ) -> None:
        """Wait until the slaves that respond have the messages of their master."""
        end = int((await self._runtime(plan.address)).get("commitLogMaxOffset", 0))
        waiting = set(plan.slaves)
        while waiting:
            lags: dict[str, int] = {}
            for address in waiting:
                try:
                    found = await self._runtime(address)
                except RocketError as error:
                    log.warning(
                        "not waiting for slave %s of broker %s, because it failed: %s",
                        address,
                        self._broker,
                        error,
                    )
                else:
                    lags[address] = end - int(found.get("commitLogMaxOffset", end))
            waiting = {address for address, lag in lags.items() if lag > 0}
            if waiting:
                report(DrainProgress(stored, 0.0, max(lags.values())))
                await asyncio.sleep(_POLL_S)

    async def _stored(self, address: str) -> int:
        """Return the number of messages that a broker has stored since its start."""
        state = await self._runtime(address)
        try:
            return int(state["putMessageTimesTotal"])
        except (KeyError, ValueError):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "it does not report how many messages it has stored", self._broker
            ) from None

    async def _runtime(self, address: str) -> dict[str, str]:
        response = await self._requests.call(address, self._broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(response.body).table
