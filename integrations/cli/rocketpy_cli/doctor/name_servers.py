"""Checks of name servers: whether each address is a name server, and whether they all agree."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rocketpy.client.instance import ClientInstance
from rocketpy.errors import ConnectFailed, RocketError
from rocketpy.protocol.bodies import PERM_WRITE, ClusterInfo, TopicList, TopicRouteData
from rocketpy.protocol.codes import RequestCode, ResponseCode
from rocketpy.protocol.headers import GetRouteInfoRequestHeader, Header
from rocketpy.protocol.remoting.command import Command
from rocketpy.transport import Address, ChannelOptions, ClientOnlyEndpoint, connect
from rocketpy_cli.doctor.findings import Findings, add_error_response

TIMEOUT_MS: Final = 5000
_ROUTES_MAX: Final = 500
"""Maximum number of topics whose routes are compared. Clusters may have many thousands of topics."""
_CONCURRENCY: Final = 32


@dataclass(frozen=True, slots=True)
class NameServerView:
    """The brokers and routes that one name server reports."""

    cluster: ClusterInfo
    """The brokers."""
    routes: dict[str, TopicRouteData] = field(default_factory=dict)
    """The routes by topic."""


async def check_name_servers(findings: Findings, client: ClientInstance) -> dict[str, NameServerView]:
    """Check each name server; return the views of those that respond, by address."""
    addresses = client.name_servers.addresses
    found = await asyncio.gather(*(_check(findings, client, address) for address in addresses))
    known = {address: view for address, view in zip(addresses, found, strict=True) if view is not None}
    topics = sorted({topic for view in known.values() for topic in view.routes})[:_ROUTES_MAX]
    for address, view in known.items():
        try:
            await _read_routes(client, address, view, topics)
        except RocketError as error:
            findings.not_checked("routes", f"name server {address}", error)
            return known
    _compare(findings, known)
    _check_queues(findings, known.values())
    return known


async def _check(findings: Findings, client: ClientInstance, address: str) -> NameServerView | None:
    subject = f"name server {address}"
    try:
        response = await _request(client, address, RequestCode.GET_BROKER_CLUSTER_INFO)
    except RocketError as error:
        await _explain(findings, subject, Address.parse(address), error)
        return None
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        remedy = "Give the address of a name server; they listen on port 9876 by default, brokers on 10911"
        findings.problem("name server", subject, "it is a broker, not a name server", remedy)
        return None
    if response.code != ResponseCode.SUCCESS:
        add_error_response(findings, subject, response.remark)
        return None
    try:
        known = NameServerView(ClusterInfo.decode(response.body))
        topics = await _request(client, address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        if topics.code != ResponseCode.SUCCESS:
            add_error_response(findings, subject, topics.remark)
            return known
        known.routes.update(dict.fromkeys(TopicList.decode(topics.body).topic_list, TopicRouteData()))
    except RocketError as error:
        findings.problem("name server", subject, str(error), "See the log of that server")
        return None
    brokers = len(known.cluster.broker_addr_table)
    text = f"it knows {brokers} broker names and {len(known.routes)} topics"
    if brokers:
        findings.ok("name server", subject, text)
    else:
        remedy = "Start a broker, with namesrvAddr set to this name server"
        findings.problem("name server", subject, "it knows no broker", remedy)
    return known


async def _request(client: ClientInstance, address: str, code: int, header: Header | None = None) -> Command:
    return await client.request(address, Command.request(code, header), TIMEOUT_MS)


async def _explain(findings: Findings, subject: str, address: Address, error: RocketError) -> None:
    """Add a finding with the reason why a name server does not respond."""
    text = str(error).removeprefix(f"{subject} ")
    if "HTTP" in text:
        remedy = "Give the address of a name server (port 9876 by default); this is a web server"
        findings.problem("name server", subject, f"it is not a RocketMQ server: {text}", remedy)
    elif await _responds_with_other_scheme(address):
        tls = address.scheme == "tls"
        remedy = "Write the address without tls://" if tls else "Write tls:// before the address"
        mismatch = "it does not speak TLS" if tls else "it requires TLS"
        findings.problem("tls", subject, f"{mismatch}: {text}", remedy)
    elif address.scheme == "tls" and "cert" in text.lower():
        remedy = (
            "Set ROCKETPY_TLS_CA, or tls_ca in the profile, to the CA of its certificate, and tls_cert if it "
            "requires a client certificate"
        )
        findings.problem("tls", subject, text, remedy)
    elif isinstance(error, ConnectFailed):
        remedy = (
            "Correct host and port (--namesrv, ROCKETPY_NAMESRV, the profile or NAMESRV_ADDR), start the "
            "name server, or open the port in the firewall"
        )
        findings.problem("name server", subject, text, remedy)
    else:
        remedy = "Check that it is a name server of RocketMQ, and that it is not overloaded"
        findings.problem(
            "name server", subject, f"it accepts connections, but does not respond: {text}", remedy
        )


async def _responds_with_other_scheme(address: Address) -> bool:
    """Return whether a server responds to the other scheme: to TLS for tcp://, to plain TCP for tls://."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only detects the protocol; nothing confidential is sent
    other = replace(address, scheme="tcp" if address.scheme == "tls" else "tls")
    try:
        channel = await connect(other, ClientOnlyEndpoint(), ChannelOptions(ssl=context))
    except RocketError:
        return False
    try:
        await channel.request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), TIMEOUT_MS)
    except RocketError:
        return False
    finally:
        await channel.close_within(TIMEOUT_MS / 1000)
    return True


async def _read_routes(
    client: ClientInstance, address: str, view: NameServerView, topics: Sequence[str]
) -> None:
    """Put the routes of topics into a view."""
    limit = asyncio.Semaphore(_CONCURRENCY)

    async def read(topic: str) -> None:
        async with limit:
            header = GetRouteInfoRequestHeader(topic=topic)
            response = await _request(client, address, RequestCode.GET_ROUTEINTO_BY_TOPIC, header)
        if response.code == ResponseCode.SUCCESS:
            view.routes[topic] = TopicRouteData.decode(response.body)

    await asyncio.gather(*map(read, topics))


# -- agreement --------------------------------------------------------------------------------


def _compare(findings: Findings, known: Mapping[str, NameServerView]) -> None:
    """Compare the brokers and routes of name servers."""
    if len(known) < 2:
        return
    subject = f"name servers {', '.join(known)}"
    differences = [*_differences(known, _brokers_of), *_differences(known, _topics_of)]
    if not differences:
        findings.ok("agreement", subject, "they know the same brokers and routes")
        return
    shown = "; ".join(differences[:5]) + ("; …" if len(differences) > 5 else "")
    findings.problem(
        "agreement",
        subject,
        f"they disagree, so clients see different clusters: {shown}",
        "Set namesrvAddr of every broker to all name servers, and check that brokers reach each of them; "
        "brokers register again every 30 s",
    )


def _check_queues(findings: Findings, known: Iterable[NameServerView]) -> None:
    """Find topics with queues that producers write to, but consumers do not read."""
    unread = {
        (topic, queues.broker_name): queues
        for view in known
        for topic, route in view.routes.items()
        for queues in route.queue_datas
        if queues.perm & PERM_WRITE and queues.write_queue_nums > queues.read_queue_nums
    }
    for (topic, broker), queues in sorted(unread.items()):
        reads, writes = queues.read_queue_nums, queues.write_queue_nums
        findings.problem(
            "queues",
            f"topic {topic} on {broker}",
            f"producers write to {writes} queues, and consumers read {reads}: messages in the others are "
            "never consumed",
            f"Let consumers read them: rocketpy topic alter {topic} --read-queues {writes}",
        )


def _brokers_of(view: NameServerView) -> dict[str, str]:
    return {
        f"broker {name} id {broker_id}": address
        for name, data in view.cluster.broker_addr_table.items()
        for broker_id, address in data.broker_addrs.items()
    }


def _topics_of(view: NameServerView) -> dict[str, str]:
    return {
        f"topic {topic} on {queues.broker_name}": (
            f"{queues.read_queue_nums}/{queues.write_queue_nums} queues, permission {queues.perm}"
        )
        for topic, route in view.routes.items()
        for queues in route.queue_datas
    }


def _differences(
    known: Mapping[str, NameServerView], read: Callable[[NameServerView], Mapping[str, str]]
) -> list[str]:
    tables = {address: read(view) for address, view in known.items()}
    keys = sorted({key for table in tables.values() for key in table})
    found = []
    for key in keys:
        values = {address: table.get(key, "unknown") for address, table in tables.items()}
        if len(set(values.values())) > 1:
            found.append(f"{key}: " + ", ".join(f"{value} at {address}" for address, value in values.items()))
    return found
