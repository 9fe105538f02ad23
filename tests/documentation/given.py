"""What commands of pages take for granted, and which commands do not run in tests, with the reasons."""

from __future__ import annotations

from typing import Final

WORDS_NOT_RUN: Final = {
    "#": "is for root: it would change this machine",
    "kubectl": "needs a cluster; tests/integration/server/test_kubernetes.py runs its commands",
    "docker": "needs Docker; tests/integration/server/test_deploy.py checks the container file",
    "make": "sets up an environment of its own; CI runs the targets themselves",
    "pip": "would change the environment of the tests",
    "python3": "the tests have their environment already",
    ".": "the tests have their environment already",
}
"""First word of a command, or # for root's -> why it does not run."""

_ONE_BROKER: Final = "refused where no other broker has the topics; tests/integration/cli drains one of two"
_USERS: Final = "needs users; tests/integration/security/test_users.py has them"
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    (
        "command-line",
        "$ rocketpy consume Orders --follow",
    ): "shows nothing until a message comes; tests/integration/cli/test_consume.py follows a topic",
    (
        "command-line",
        '$ rocketpy consume Orders --follow --sql "total > 100"',
    ): "needs a broker with enablePropertyFilter; tests/integration/cli/test_consume.py has one",
    (
        "command-line",
        "$ rocketpy message recall Reminders HANDLE",
    ): "HANDLE is that of a message; tests/integration/cli/test_delays.py recalls one",
    ("command-line", "$ rocketpy broker drain broker-a"): _ONE_BROKER,
    ("deployment", "$ rocketpy broker drain broker-a"): _ONE_BROKER,
    (
        "command-line",
        "$ rocketpy acl put billing --secret-file secret --topic Orders=SUB",
    ): "needs access control; tests/integration/cli/test_operating.py has it",
    ("command-line", "$ rocketpy user put billing --password-file secret"): _USERS,
    ("command-line", "$ rocketpy policy put billing Topic:Orders --action Sub"): _USERS,
    ("servers", "$ rocketpy-broker migrate-acl conf/plain_acl.yml store/config"): _USERS,
    ("migration", "$ sh bin/mqbroker -c broker.conf"): "is RocketMQ's own; tests/interop opens its stores",
}
"""(page, command) -> why it does not run."""

STATUS: Final[dict[tuple[str, str], int]] = {
    ("command-line", '$ rocketpy doctor --namesrv "127.0.0.1:9876;127.0.0.1:10911"'): 1,
}
"""(page, command) -> its exit status, where it is not 0."""

_STORE: Final = " --store /var/lib/rocketmq"
_BROKER: Final = f"""
from tests.documentation.pages import Command
started = "$ rocketpy-broker broker -c broker.conf{_STORE} --namesrv 127.0.0.1:9876"
await shell.run(Command("", started, [], None))
"""
_CLIENTS: Final = """
import asyncio
from rocketpy import *
from tests.waiting import LIMIT_S
"""
_PEERS: Final = """
import re
from tests.documentation.pages import Command
from tests.documentation.shell import free_address
from tools.import_map import ROOT
shell.places |= {port: free_address().rpartition(":")[2] for port in ("40911", "40912", "40913")}
shell.places |= {"/var/lib/rocketmq": str(shell.folder)}
page = (ROOT / "docs/guides/dledger.md").read_text("utf-8")
text = re.search(r"^```properties\\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
for peer in ("n1", "n2", "n0"):
    shell.save(f"{peer}.conf", re.sub(r"\\bn0$", peer, text, flags=re.MULTILINE).replace("/n0", f"/{peer}"))
for peer in ("n1", "n2"):
    await shell.run(Command("", f"$ rocketpy-broker broker -c {peer}.conf", [], None))
"""
GIVEN: Final[dict[tuple[str, str], str]] = {
    ("command-line", "$ tail -f app.log | rocketpy send Logs"): """
shell.save("app.log", "started\\nready\\n")
shell.save("orders.jsonl", '{"body": "order 43", "keys": "43"}\\n')
shell.save("cat.png", "a picture")

shell.save(".config/rocketpy.toml", f'[staging]\\nnamesrv = "{NAMESRV}"\\n')
shell.places |= {"--messages 100000": "--messages 2000", "--rate 2000": "--rate 2000 --messages 2000"}
""",
    ("command-line", "$ rocketpy dlq list"): _CLIENTS
    + """
async def give_up(message):
    return Later(delay_level=-1)

ids = "7F00000100002A9F0000000000000BB8"
consumer = PushConsumer("billing", NAMESRV, give_up)
consumer.subscribe("Orders")
async with AdminClient(NAMESRV) as admin, consumer, asyncio.timeout(LIMIT_S):
    while not (letters := (await admin.dead_letters.fetch("billing")).messages):
        await asyncio.sleep(0.1)
shell.places[ids] = letters[0].message_id
""",
    ("command-line", "$ rocketpy message find Orders --key 42"): _CLIENTS
    + """
async with Producer("shop", NAMESRV) as producer:
    result = await producer.send(Message("Orders", b"order 44"))
    shell.places["7F00000100002A9F0000000000000BB8"] = result.offset_message_id
""",
    ("command-line", "$ rocketpy topic create Orders --queues 8"): _CLIENTS
    + """
async with AdminClient(NAMESRV) as admin:
    await admin.topics.delete("Orders")
""",
    ("command-line", '$ rocketpy doctor --namesrv "127.0.0.1:9876;127.0.0.1:10911"'): _CLIENTS
    + """
async with AdminClient(NAMESRV) as admin, Producer("shop", NAMESRV) as producer:
    shell.places["127.0.0.1:10911"] = (await admin.brokers.list())[0].address
    result = await producer.send(Message("Orders", b"order 44"))
    shell.places["7F00000100002A9F0000000000000BB8"] = result.offset_message_id
""",
    (
        "servers",
        "$ rocketpy-broker broker -c broker.conf --namesrv 127.0.0.1:9876 --store /var/lib/rocketmq",
    ): """
shell.places |= {"/var/lib": str(shell.folder)}
shell.save("broker.conf", "brokerName = broker-a")
""",
    ("deployment", "$ curl -s http://127.0.0.1:9464/readyz"): """
from tests.documentation.pages import Command
from tests.documentation.shell import free_address
nobody = free_address()
alone = f"$ rocketpy-broker broker --store rocketpy-broker/store --set metricsPort=9464 --namesrv {nobody}"
shell.places |= {"/var/lib": str(shell.folder)}
await shell.run(Command("", alone, [], None))
""",
    ("backup", f"$ rocketpy-broker stop --drain{_STORE}"): """
shell.places |= {"/var/lib": str(shell.folder / "lib"), "/backup": str(shell.folder / "backup")}
shell.places |= {"/tmp/rocketmq-try": str(shell.folder / "try")}
shell.save("backup/broker.conf", "")
shell.save("broker.conf", "brokerName = broker-b\\ndrainWaitMs = 100")
"""
    + _BROKER,
    ("backup", "$ mkdir -p /backup/running"): _BROKER
    + _CLIENTS
    + """
async with Producer("shop", NAMESRV) as producer, asyncio.timeout(LIMIT_S):
    while True:  # until the broker has a message
        await producer.create_topic("Orders", 4)
        result = await producer.send(Message("Orders", b"order 42"))
        if result.queue.broker_name == "broker-b":
            break
    while not (shell.folder / "lib/rocketmq/index").exists():
        await asyncio.sleep(0.05)
""",
    ("backup", "$ mv /var/lib/rocketmq /var/lib/rocketmq.damaged"): """
from tests.documentation.pages import Command
await shell.run(Command("", "$ rocketpy-broker stop --store /var/lib/rocketmq", [], None))
""",
    ("migration", f"$ rocketpy-broker stop --drain{_STORE}"): """
shell.places |= {"/var/lib": str(shell.folder / "lib"), "/backup": str(shell.folder / "backup")}
shell.save("backup/broker.conf", "")
shell.save("broker.conf", "brokerName = broker-b\\ndrainWaitMs = 100")
"""
    + _BROKER,
    ("migration", "$ rocketpy export Orders --to orders --namesrv 127.0.0.1:9876"): _CLIENTS
    + """
async with Producer("shop", NAMESRV) as producer:
    await producer.send(Message("Orders", b"order 42"))
""",
    ("migration", "$ rocketpy topic create Orders --queues 4 --namesrv 127.0.0.1:19876"): _CLIENTS
    + """
shell.places["127.0.0.1:19876"] = NAMESRV
async with AdminClient(NAMESRV) as admin:
    await admin.topics.delete("Orders")
""",
    ("sizing", "$ rocketpy bench Bench --messages 100000 --size 1024"): """
shell.places |= {"--messages 100000": "--messages 2000"}
""",
    ("upgrade", "$ rocketpy-broker stop --drain --store /var/lib/rocketpy-broker/store"): """
from tests.documentation.pages import Command
shell.places |= {"/var/lib": str(shell.folder / "lib"), "/etc/rocketpy": str(shell.folder)}
store = shell.folder / "lib/rocketpy-broker/store"
shell.save("broker.conf", f"namesrvAddr = {NAMESRV}\\nstorePathRootDir = {store}\\ndrainWaitMs = 100")
await shell.run(Command("", "$ rocketpy-broker broker -c broker.conf", [], None))
""",
    ("command-line", "$ rocketpy message trace order-42"): _CLIENTS
    + """
traced = ProducerConfig(message_trace=MessageTraceConfig())
async with Producer("shop", NAMESRV, config=traced) as producer:
    await producer.send(Message("Orders", b"order 42", keys="order-42"))
async with AdminClient(NAMESRV) as admin, asyncio.timeout(LIMIT_S):
    while "RMQ_SYS_TRACE_TOPIC" not in await admin.topics.list(include_system=True):
        await asyncio.sleep(0.1)
    while not (await admin.messages.traces("order-42")).messages:
        await asyncio.sleep(0.1)
""",
    ("dledger", "$ rocketpy-broker broker -c n0.conf"): _PEERS,
    ("dledger", "$ rocketpy-broker dledger status --namesrv 127.0.0.1:9876"): _CLIENTS
    + """
async with Producer("shop", NAMESRV) as producer, asyncio.timeout(LIMIT_S):
    while True:  # until the group has a leader, and its followers know what is committed
        result = await producer.send(Message("Orders", b"order 42"))
        if result.queue.broker_name == "RaftNode00":
            break
        await producer.create_topic("Orders", 4)
""",
}
"""(page, command) -> code that runs before it."""
