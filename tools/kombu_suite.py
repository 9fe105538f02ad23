"""kombu's own tests of transports, from a checkout of kombu, with our transport and a broker of ours.

    python -m tools.kombu_suite ~/kombu -k Message

`t/integration/common.py` of kombu has the tests that each of its transports runs. Those of priorities are
left out: RocketMQ has none. So are those which want a requeued message at once: brokers need about a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pytest_rocketpy.cluster import ClusterThread
from tools.import_map import ROOT

_TESTS: Final = """
import itertools, os, socket
import kombu, pytest
import rocketpy_kombu
from t.integration.common import BaseExchangeTypes, BaseMessage, BaseTimeToLive, BasicFunctionality

numbers = itertools.count()

@pytest.fixture
def connection():
    # Each test has queues of its own, as kombu's tests expect empty ones.
    options = {"queue_name_prefix": f"t{next(numbers)}-", "wait_time_seconds": 1}
    return kombu.Connection(os.environ["KOMBU_URL"], transport_options=options)

@pytest.fixture
def invalid_connection():
    return kombu.Connection("rocketmq://127.0.0.1:1")

class TestBasicFunctionality(BasicFunctionality):
    pass

class TestExchangeTypes(BaseExchangeTypes):
    pass

class TestTimeToLive(BaseTimeToLive):
    pass

class TestMessage(BaseMessage):
    test_requeue = test_reject_requeue = None
"""


def main() -> int:
    """Run the tests; return pytest's exit status."""
    checkout = Path(sys.argv[1]).expanduser() if len(sys.argv) > 1 else None
    if checkout is None or not (checkout / "t/integration").is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, ClusterThread({}) as servers:
        file = Path(folder) / "test_rocketmq.py"
        file.write_text(_TESTS, "utf-8")
        paths = (str(checkout.resolve()), str(ROOT), str(ROOT / "integrations/kombu"))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "KOMBU_URL": f"rocketmq://{servers.cluster.namesrv_address}",
        }
        options = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir", folder)
        command = (sys.executable, "-m", "pytest", *options, str(file), *sys.argv[2:])
        return subprocess.run(command, env=environment, check=False, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
