"""Shared parts of the scenarios of `running_peers`: client processes, and checks of received messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rocketpy import AdminClient, PullConsumer
from tests.interop import probe
from tests.interop.cluster import PATIENT
from tests.interop.processes import our_environment
from tools.compatibility.peer_client import DEAD, RETRIED, label

CLIENT = Path(__file__).parent / "peer_client.py"
TOPIC, QUEUES = "T", 8
CONF: dict[str, object] = {
    **PATIENT,
    "messageDelayLevel": "1s 2s 4s",
    "transactionTimeOut": 500,
    "transactionCheckInterval": 200,
    "transactionCheckMax": 10_000,
    "flushConsumerOffsetInterval": 200,
    "mappedFileSizeCommitLog": 256 << 10,
}
STORED = "plain,special,transactions"
"""Kinds of sends that need no consumer."""

Versions = dict[str, Path]
Place = tuple[int, int]


class Client:
    """A `peer_client` process with the code of a checkout. `events`: the events that it has printed."""

    def __init__(self, run: Path, checkout: Path, *arguments: str) -> None:
        number = len(list(run.glob("client-*.jsonl")))
        self.name = f"client-{number} ({' '.join(arguments)})"
        self._output = run / f"client-{number}.jsonl"
        with self._output.open("wb") as output, (run / f"client-{number}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(CLIENT), *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=log,
                env=our_environment(checkout),
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """Whole lines only: the last one may be half written."""
        return [json.loads(line) for line in self._output.read_text().split("\n")[:-1]]

    @property
    def held(self) -> list[int]:
        """Ids of the queues that are assigned to it."""
        return next((event["held"] for event in reversed(self.events) if "held" in event), [])

    @property
    def seen(self) -> list[dict[str, Any]]:
        """The received messages."""
        return [event for event in self.events if "label" in event]

    def end(self) -> Self:
        """Close the client and wait for its end. Raises RuntimeError with the end of its log if it failed."""
        self._process.communicate(timeout=120)
        log = self._output.with_suffix(".log").read_text()
        if self._process.returncode or "Traceback" in log:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}\n{log[-4000:]}")
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def produce(run: Path, namesrv: str, senders: dict[str, Path], kinds: str) -> list[str]:
    """Let one producer for each name send, all at once; return the labels that consumers must get."""
    with ExitStack() as stack:
        producers = [
            stack.enter_context(Client(run, checkout, "produce", namesrv, TOPIC, name, kinds))
            for name, checkout in senders.items()
        ]
        return [text for producer in producers for text in producer.end().events[-1]["sent"]]


def seen_by(members: Iterable[Client]) -> Counter[str]:
    """How often each message was received."""
    return Counter(event["label"] for member in members for event in member.seen)


def await_messages(
    members: Sequence[Client], sent: Sequence[str], *, refusing: bool = True, also: Iterable[str] = ()
) -> None:
    """Wait until the members together have each message as often as they must, and no other.

    refusing: whether members reject some messages, which are redelivered. also: further allowed messages.
    """
    wanted = Counter({text: 2 if refusing and (RETRIED in text or DEAD in text) else 1 for text in sent})
    try:
        probe.wait_until(lambda: seen_by(members) >= wanted, "messages", 60)
    except TimeoutError as error:
        raise TimeoutError(f"{members[0].name}: {wanted - seen_by(members)}") from error
    extra = seen_by(members) - wanted
    assert extra.keys() <= set(also), (members[0].name, extra)
    assert all(event["intact"] for member in members for event in member.seen), members[0].name


def await_split(members: Sequence[Client]) -> None:
    """Wait until the members have all queues, each queue once."""
    probe.wait_until(
        lambda: (
            all(member.held for member in members)
            and sorted(number for member in members for number in member.held) == list(range(QUEUES))
        ),
        f"the queues of {members[0].name}",
    )


async def make_topics(namesrv: str, *topics: str) -> None:
    """Create topics at the only broker."""
    async with AdminClient(namesrv) as admin:
        for topic in topics:
            await admin.create_topic(topic, QUEUES)


async def read_all(namesrv: str, topic: str) -> dict[Place, tuple[str, str]]:
    """Label and id of every message of a topic, by its queue and offset."""
    found = {}
    async with PullConsumer("compatibility_readers", namesrv) as consumer:
        for queue in await consumer.fetch_queues(topic):
            offset = await consumer.min_offset(queue)
            while offset < await consumer.max_offset(queue):
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    found[queue.queue_id, message.queue_offset] = (label(message.body), message.message_id)
                offset = result.next_offset
    return found


def command(checkout: Path, *arguments: str, namesrv: str = "") -> str:
    """Output of the command rocketpy-broker. If it fails, prints the output and raises CalledProcessError."""
    environment = {**our_environment(checkout), "NAMESRV_ADDR": namesrv}
    call = [sys.executable, "-m", "rocketpy_broker.cli", *arguments]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr)
    done.check_returncode()
    return done.stdout
