"""The fixtures of pytest_rocketpy, in test runs of their own with real servers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tools.import_map import ROOT

pytestmark = pytest.mark.slow
pytest_plugins = ["pytester"]

PATH = [ROOT, ROOT / "integrations/pytest"]
STRICT = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
AUTO = STRICT + "asyncio_mode = auto\n"
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the text of a test module in a process of its own, with warnings as errors."""
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, PATH)))

    def run_text(text: str, *arguments: str, ini: str = AUTO) -> pytest.RunResult:
        pytester.makeini(ini)
        pytester.makepyfile("import asyncio\nimport pytest\n" + text)
        options = ("-p", "pytest_rocketpy", "-p", "no:cacheprovider", "-W", "error")
        return pytester.runpytest_subprocess(*options, *arguments, timeout=120)

    return run_text


def test_tests_do_not_see_each_others_messages(run: Run) -> None:
    """A message of one test could make the next one pass or fail."""
    run("""
from rocketpy import Message, PushConsumer

async def consumed(rocketmq):
    arrived = asyncio.Queue()
    async def handle(message):
        await arrived.put(message.body)
    consumer = PushConsumer("shop", handler=handle, client=rocketmq.client)
    consumer.subscribe("Orders")
    async with consumer:
        return await asyncio.wait_for(arrived.get(), 30)

async def test_first(rocketmq, rocketmq_producer, assert_sent):
    await rocketmq_producer.send(Message("Orders", b"first"))
    assert (await assert_sent("Orders")).body == b"first"
    assert await consumed(rocketmq) == b"first"

async def test_second(rocketmq, rocketmq_producer, assert_sent):
    assert rocketmq.sent() == []
    await rocketmq_producer.send(Message("Orders", b"second"))
    assert [message.body for message in rocketmq.sent("Orders")] == [b"second"]
    assert rocketmq.sent("Others") == []
    assert await consumed(rocketmq) == b"second"
""").assert_outcomes(passed=2)


def test_delayed_messages_are_seen_before_they_are_due(run: Run) -> None:
    """A test of a reminder for tomorrow would have to wait until then."""
    run("""
from datetime import timedelta
from rocketpy import Message

HOUR = timedelta(hours=1)  # also a level

async def test_first(rocketmq, rocketmq_producer, assert_sent):
    await rocketmq_producer.send(Message("Reminders", b"later", delay=HOUR, tags="t"))
    await rocketmq_producer.send(Message("Reminders", b"by level", delay_level=17))
    await rocketmq_producer.send(Message("Others", b"soon", delay=timedelta(seconds=1)))
    later, by_level = rocketmq.delayed("Reminders")
    assert (later.topic, later.body, later.tags) == ("Reminders", b"later", "t")
    due_ms = later.deliver_at.timestamp() * 1000 if later.deliver_at else 0
    assert later.delay_level == 17 or abs(due_ms - later.born_timestamp - 3_600_000) < 2
    assert (by_level.body, by_level.delay_level, by_level.deliver_at) == (b"by level", 17, None)
    assert rocketmq.sent() == []
    await assert_sent("Others", b"soon")
    assert len(rocketmq.delayed()) == 2

async def test_second(rocketmq, rocketmq_producer):
    assert rocketmq.delayed() == []
    result = await rocketmq_producer.send(Message("Reminders", b"forget me", delay=HOUR))
    assert [message.body for message in rocketmq.delayed()] == [b"forget me"]
    if result.recall_handle is not None:
        await rocketmq_producer.recall("Reminders", result.recall_handle)
        assert rocketmq.delayed() == []
""").assert_outcomes(passed=2)


def test_a_failure_lists_what_was_sent(run: Run) -> None:
    """The reader of a failed test would not see which message was wrong, and how."""
    result = run("""
from rocketpy import Message

def test_wrong(rocketmq, assert_sent):
    rocketmq.send(Message("Orders", b"espresso", tags="hot", keys="o-1"))
    assert_sent.blocking("Orders", "latte", tags="hot", properties={"size": "small"}, timeout_s=0.1)

async def test_nothing(assert_sent):
    await assert_sent("Orders", timeout_s=0.1)

def test_many(rocketmq, assert_sent):
    for number in range(21):
        rocketmq.send(Message("Orders", b"%d" % number))
    assert_sent.blocking("Others", timeout_s=0.1)
""")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines([
        "E * no message to 'Orders' with body=b'latte', tags='hot', size='small' was stored within 0.1 s. *",
        "E * 'Orders' tags='hot' keys='o-1' body=b'espresso'",
        "E * this test sent no message. Give client=rocketmq.client to its producers",
        "E * (1 earlier ones)",
    ])  # fmt: skip
    assert "cluster.py" not in result.stdout.str()


def test_it_waits_for_what_the_program_sends_later(run: Run) -> None:
    """A test of a background task would need sleeps, or match a message that is not the right one."""
    run("""
from rocketpy import Message

async def test_later(rocketmq_producer, assert_sent):
    async def work():
        for number in range(3):
            await rocketmq_producer.send(Message("Orders", b"%d" % number, tags="t", keys=f"a k{number}"))
    waiting = asyncio.create_task(assert_sent("Orders", keys="k1", properties={"TAGS": "t"}))
    await asyncio.sleep(0)
    await work()
    assert (await waiting).body == b"1"
    assert (await assert_sent("Orders", matching=lambda message: message.body > b"1")).body == b"2"
""").assert_outcomes(passed=1)


FAULTS = """
from rocketpy import Message
from rocketpy.errors import BrokerError, ConnectFailed, RequestTimeout
from rocketpy.protocol.codes import ResponseCode

async def test_down(rocketmq, rocketmq_producer, assert_sent):
    await rocketmq_producer.send(Message("Orders", b"before"))
    with rocketmq.broker_down():
        with pytest.raises(ConnectFailed):
            await rocketmq_producer.send(Message("Orders", b"lost"))
        assert [message.body for message in rocketmq.sent()] == [b"before"]
    await rocketmq_producer.send(Message("Orders", b"after"))
    assert [message.body for message in rocketmq.sent()] == [b"before", b"after"]

@pytest.mark.parametrize("name, code", [
    ("disk_full", ResponseCode.SERVICE_NOT_AVAILABLE), ("busy_broker", ResponseCode.SYSTEM_BUSY),
])
async def test_refused(rocketmq, rocketmq_producer, name, code):
    with getattr(rocketmq, name)():
        for _ in range(3):
            with pytest.raises(BrokerError, match="this fault was set by the test") as failure:
                await rocketmq_producer.send(Message("Orders", b"refused"))
            assert failure.value.code == code
            await asyncio.sleep(0.1)  # longer than the interval in which the store samples whether it is busy
    await rocketmq_producer.send(Message("Orders", b"taken"))
    assert [message.body for message in rocketmq.sent()] == [b"taken"]

async def test_slow(rocketmq, rocketmq_producer, assert_sent):
    await rocketmq_producer.send(Message("Orders", b"warm"))
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with rocketmq.slow_broker(0.3):
        await rocketmq_producer.send(Message("Orders", b"slow"))
        assert loop.time() - begin >= 0.3
        with pytest.raises(RequestTimeout):
            await rocketmq_producer.send(Message("Orders", b"late"), timeout_ms=100)
    await assert_sent("Orders", b"late")  # the broker stored it: the outcome was unknown

async def test_failure_inside(rocketmq):
    with pytest.raises(ZeroDivisionError), rocketmq.broker_down(), rocketmq.disk_full():
        1 / 0

async def test_no_fault_stays(rocketmq_producer, assert_sent):
    await rocketmq_producer.send(Message("Orders", b"well"))
    await assert_sent("Orders", b"well")
"""


def test_faults_happen_and_end(run: Run) -> None:
    """A program's handling of a broker that fails could not be tested, or the fault would stay."""
    run(FAULTS).assert_outcomes(passed=6)


ONE_SEND = """
from rocketpy import Message

MARK
async def test_send(rocketmq_producer, assert_sent):
    await rocketmq_producer.send(Message("Orders", b"one"))
    await assert_sent("Orders", b"one")
"""


@pytest.mark.parametrize(
    ("mark", "ini", "arguments"),
    [
        ("", AUTO, ()),
        ("@pytest.mark.asyncio", STRICT, ()),
        (
            "@pytest.mark.asyncio(loop_scope='session')",
            "[pytest]\nasyncio_default_fixture_loop_scope = session\n",
            (),
        ),
        ("@pytest.mark.anyio", STRICT, ("-k", "asyncio")),
        ("@pytest.mark.anyio", "", ("-k", "asyncio", "-p", "no:asyncio")),
    ],
)
def test_async_plugins(run: Run, mark: str, ini: str, arguments: tuple[str, ...]) -> None:
    """The producer would belong to another event loop than the test."""
    run(ONE_SEND.replace("MARK", mark), *arguments, ini=ini).assert_outcomes(passed=1, deselected=0)


def test_without_an_event_loop_the_error_says_so(run: Run) -> None:
    """The error would say that the fixture is an async generator, and not what to do."""
    result = run("def test_plain(rocketmq_producer): ...", "-p", "no:asyncio", "-p", "no:anyio", ini="")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*install pytest-asyncio*uses rocketmq.send(message)*"])


def test_workers_have_servers_of_their_own(run: Run) -> None:
    """Parallel workers would share a port, or see each other's messages."""
    run(
        """
from rocketpy import Message

@pytest.mark.parametrize("number", range(8))
async def test_alone(rocketmq, number):
    rocketmq.send(Message("Orders", b"%d" % number))
    assert [message.body for message in rocketmq.sent()] == [b"%d" % number]
""",
        "-n",
        "2",
    ).assert_outcomes(passed=8)


def test_settings_of_the_broker_can_be_overridden(run: Run, pytester: pytest.Pytester) -> None:
    """A project whose topics are made by an administrator could not test with such a broker."""
    pytester.makeconftest(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def rocketmq_settings():\n"
        "    return {'autoCreateTopicEnable': False}\n"
    )
    run("""
from rocketpy import Message
from rocketpy.errors import RocketError

def test_unknown(rocketmq):
    with pytest.raises(RocketError, match="Orders"):
        rocketmq.send(Message("Orders", b"one"))
""").assert_outcomes(passed=1)


def test_nothing_is_imported_until_a_fixture_is_used(run: Run) -> None:
    """Every test run of every project beside rocketpy would pay for its import."""
    run("""
import sys

def loaded():
    return [name for name in sys.modules if name.partition(".")[0] in ("rocketpy", "rocketpy_broker")]

def test_before(request):
    assert request.config.pluginmanager.hasplugin("pytest_rocketpy")
    assert loaded() == []

def test_after(rocketmq):
    assert loaded()
""").assert_outcomes(passed=2)


def test_the_tests_of_the_guide_pass(run: Run, pytester: pytest.Pytester) -> None:
    """The first test that a reader copies could fail."""
    page = (ROOT / "docs/guides/testing.md").read_text("utf-8")
    blocks = re.findall(r'^```python title="(\w+)\.py"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == page.count("```python") == 5
    pytester.makepyfile(**dict(blocks))
    run("").assert_outcomes(passed=5)


def test_the_plugin_module_is_light() -> None:
    """Each run loads it in every run: it may import nothing that pytest has not."""
    script = (
        "import sys, pytest; before = set(sys.modules); import pytest_rocketpy; "
        "print(sorted(set(sys.modules) - before))"
    )
    path = str(ROOT / "integrations/pytest")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['pytest_rocketpy']\n"
