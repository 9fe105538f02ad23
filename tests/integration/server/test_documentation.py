"""Runs the Python blocks of README and docs/: programs one by one, fragments page by page.

Blocks marked `py` show code of other projects, and do not run.
"""

import ast
import asyncio
import contextlib
import logging
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rocketpy_broker import EmbeddedCluster
from tests.waiting import until
from tools.import_map import ROOT

ELSEWHERE = {"testing": "tests/pytest_plugin runs its tests"} | dict.fromkeys(
    ("celery", "fastapi", "flask", "django", "idempotence", "jobs", "outbox", "prefork", "serialization"),
    "tests/frameworks runs their files",
)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.parent.name != "tutorial"  # tests/documentation follows its steps in order
]


def whole_programs() -> list[tuple[str, str]]:
    """(page and number, text) of each Python block that is a program and not a fragment."""
    found = []
    for page in PAGES:
        if page.stem in ELSEWHERE:
            continue
        blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        programs = [block for block in blocks if "asyncio.run(" in block]
        found += [(f"{page.stem}-{number}", text) for number, text in enumerate(programs, 1)]
    return found


def test_there_are_programs_to_run() -> None:
    """A change of the pages' form could leave every program unchecked."""
    assert len(whole_programs()) >= 3


@pytest.mark.parametrize("program", [pytest.param(text, id=name) for name, text in whole_programs()])
def test_program_runs(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first code that a new user copies could fail."""
    file = tmp_path / "program.py"
    file.write_text(program, "utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(file), run_name="__main__")
    output = capsys.readouterr()
    assert output.out
    assert output.err == ""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- fragments --------------------------------------------------------------------------------

NAMESRV = "127.0.0.1:9876"
"""The address that the pages use; a test replaces it by that of its own name server."""
FIRST = """
import asyncio, logging
from datetime import timedelta
from rocketpy import *
from rocketpy import PullConsumer
from rocketpy_broker import EmbeddedCluster
"""
PRODUCER = f"""
producer = await stack.enter_async_context(Producer("baristas", "{NAMESRV}"))
message = Message("Orders", b"...")
"""
# Page -> code that its fragments assume: it runs before the fragment with that number.
GIVEN: dict[str, dict[int, str]] = {
    "consuming": {
        1: PRODUCER
        + f"""
def give_up(message):
    return Later(delay_level=-1)
async with PushConsumer("baristas", "{NAMESRV}", give_up) as giving_up:
    giving_up.subscribe("Orders")
    await producer.send(message)
    await until(lambda: cluster.brokers[0].store.max_offset_in_queue("%DLQ%baristas", 0) == 1)
"""
    },
    "errors": {0: PRODUCER},
    "message-trace": {
        1: "await stack.enter_async_context(producer)\n"
        'message_id = (await producer.send(Message("Orders", b"x"))).message_id\n'
        "await until(lambda: 'RMQ_SYS_TRACE_TOPIC' in dict(cluster.brokers[0].store.queues.queues.keys()))\n"
    },
    "sending": {
        0: PRODUCER
        + """
messages = [Message("Orders", b"%d" % number) for number in range(10)]
very_many = [Message("Orders", b"%d" % number) for number in range(100)]
bodies, tags, shops, customer = [b"a", b"b"], ["paid", "sent"], ["1", "2"], 7
def check(future):
    future.result()
def read_secret():
    return "12345678"
"""
    },
    "servers": {
        0: """
import trustme
authority = trustme.CA()
certificate = authority.issue_cert("localhost")
authority.cert_pem.write_to_path("ca.pem")
certificate.cert_chain_pems[0].write_to_path("app.pem")
certificate.private_key_pem.write_to_path("app.key")
from rocketpy.transport import TlsFiles
"""
    },
    "tracing": {
        2: PRODUCER
        + f"""
await producer.send(Message("Orders", b"x"))
consumer = await stack.enter_async_context(PullConsumer("billing", "{NAMESRV}"))
queues = await consumer.fetch_queues("Orders")
results = [await consumer.pull(queue, 0) for queue in queues]
result = next(result for result in results if result.messages)
async def bill(message):
    assert message.body == b"x"
""",
        3: 'message = Message("Orders", b"x")',
    },
}
SPARK = "needs a Spark session; tests/spark runs the same calls"
COLLECTOR = "sends to an OpenTelemetry collector; tests/otel has one"
# (page, first line) -> why the fragment does not run here.
NOT_RUN = {
    (
        "addresses",
        "from rocketpy.transport import register_transport",
    ): "QuicTransport stands for the reader's",
    ("metrics", "from opentelemetry import metrics"): COLLECTOR,
    ("spark-from-kafka", "stream = ("): SPARK,
    ("spark-from-kafka", "from pyspark.sql.streaming import StreamingQueryListener"): SPARK,
    ("spark-semantics", "from pyspark_rocketmq import SeenRows, dedupe"): SPARK,
    ("spark-sink", "("): SPARK,
    ("spark-sink", "from pyspark_rocketmq import DefaultSource"): SPARK,
    ("spark-sink", "from pyspark_rocketmq import use_java"): SPARK,
    ("spark-sink", "from opentelemetry.propagate import inject"): SPARK,
    ("spark-sink", "from pyspark_rocketmq import foreach_batch, write_batch"): SPARK,
    ("spark-source", "orders = ("): SPARK,
    ("tracing", "from opentelemetry import trace"): COLLECTOR,
}


class Fragment(NamedTuple):
    """A Python block that is not a program. number: among the fragments of its page; line: of its page."""

    number: int
    line: int
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


def fragments() -> list[tuple[str, Fragment]]:
    """Each fragment with its page."""
    found: list[tuple[str, Fragment]] = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for block in re.finditer(r"^( *)```python[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            if "asyncio.run(" not in block[2] and page.stem not in ELSEWHERE:
                line = text.count("\n", 0, block.start(2)) + 1
                number = sum(where == page.stem for where, _ in found)
                found.append((page.stem, Fragment(number, line, textwrap.dedent(block[2]))))
    return found


FRAGMENTS = fragments()
RUN = [(page, block) for page, block in FRAGMENTS if (page, block.first_line) not in NOT_RUN]


def test_only_known_fragments_do_not_run() -> None:
    """An exception could outlive its block, or the form of a page hide its blocks."""
    assert set(NOT_RUN) - {(page, block.first_line) for page, block in FRAGMENTS} == set()
    assert len(RUN) >= 30
    given = {(page, number) for page, codes in GIVEN.items() for number in codes}
    assert given - {(page, block.number) for page, block in RUN} == set()


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    """Undo changes of a page to the root logger and to rocketpy's loggers."""
    loggers = [logging.getLogger(name) for name in ("", "rocketpy", "rocketpy_broker", "pyspark_rocketmq")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize("page", sorted({page for page, block in RUN}))
async def test_fragments_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that a reader copies into a program could be wrong, or need something that no page names."""
    monkeypatch.chdir(tmp_path)
    async with EmbeddedCluster() as cluster, contextlib.AsyncExitStack() as stack:
        names: dict[str, Any] = {"stack": stack, "cluster": cluster, "until": until, "__name__": page}
        places = {NAMESRV: cluster.namesrv_address} | dict.fromkeys(
            ("/var/lib", "/etc/rocketmq"), str(tmp_path)
        )

        async def run(text: str, line: int) -> None:
            for written, real in places.items():
                text = text.replace(written, real)
            # The line numbers of a traceback are those of the page.
            source = compile(
                "\n" * (line - 1) + text,
                f"{page}.md",
                "exec",
                ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
            if "rocketpy.sync" in text:  # it blocks, and the servers run on this loop
                await asyncio.to_thread(eval, source, names)
            elif (running := eval(source, names)) is not None:  # noqa: S307 - this project's pages
                await running

        await run(FIRST, 1)
        for block in (block for where, block in RUN if where == page):
            await run(GIVEN.get(page, {}).get(block.number, ""), 1)
            await run(block.text, block.line)
