"""Both ends of replication against recorded connections of RocketMQ 4.6.0."""

import pytest

from rocketpy_broker.replication.ha.master import DataReceived, MasterSession, Poll
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.replication.ha.wire import Frame, FrameReader
from tests import golden_data
from tests.unit.replication.ha.logs import MemoryLog, sent

NAMES = ["ha1-conn1", "ha1-conn2", "ha2-conn1", "ha3-conn1", "ha4-conn1"]
SEGMENT_BYTES = {"ha1": 256 * 1024, "ha2": 65536, "ha3": 1 << 30, "ha4": 65536}
PLAIN = HaSettings(handshake=False)


def _log(name: str, stream: golden_data.HaStream) -> MemoryLog:
    """The master's log from where the slave began, as far as it was sent."""
    frames = [frame for frame in FrameReader().feed(stream.master_to_slave) if isinstance(frame, Frame)]
    return MemoryLog(
        b"".join(frame.body or b"" for frame in frames),
        min_offset=frames[0].offset,
        segment_bytes=SEGMENT_BYTES[name[:3]],
    )


class _GrowingLog(MemoryLog):
    """Shows the log up to `end` only."""

    end = 0

    @property
    def max_offset(self) -> int:
        return self.end


@pytest.mark.parametrize("name", NAMES)
def test_this_master_sends_the_bytes_of_javas(name: str) -> None:
    """A Java slave would get bytes that no Java master sends (QUIRKS 52 to 55)."""
    stream = golden_data.ha_stream(name)
    whole = _log(name, stream)
    log = _GrowingLog(bytes(whole.data), min_offset=whole.min_offset, segment_bytes=whole.segment_bytes)
    log.end = _first_end(stream)
    now = 0.0
    master = MasterSession(log, PLAIN, "", now)
    message = b""
    for frame in stream.frames[1:]:
        if frame["dir"] == "slave->master":
            data = stream.slave_to_master[frame["at"] : frame["at"] + 8]
            assert sent(master.step(DataReceived(data), now)) == b""
        else:
            if not frame["bodySize"]:
                now += 5001
            log.end = max(log.end, frame["phyOffset"] + frame["bodySize"])
            message += sent(master.step(Poll(bytes_max=1), now))
    assert message == stream.master_to_slave


def _first_end(stream: golden_data.HaStream) -> int:
    """Where the master's log ended when the slave reported first."""
    first = next(frame for frame in stream.frames[1:] if frame["dir"] == "master->slave")
    return int(first["phyOffset"])


@pytest.mark.parametrize("name", NAMES)
def test_this_slave_sends_the_bytes_of_javas(name: str) -> None:
    """A Java master would wait for reports, or send from another offset."""
    stream = golden_data.ha_stream(name)
    expected = _log(name, stream)
    first = int(stream.frames[1]["offset"])
    log = MemoryLog(min_offset=first) if first else MemoryLog()
    opened_ms = stream.frames[1]["time"] * 1000
    slave = SlaveSession(log, PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=opened_ms)
    message = b""
    frames = stream.frames[1:]
    for index, frame in enumerate(frames):
        # A frame was read when the slave spoke next: in ha3 its process stood still for some seconds.
        spoke = (other["time"] for other in frames[index:] if other["dir"] == "slave->master")
        now_ms = next(spoke, frame["time"]) * 1000
        if frame["dir"] == "slave->master":
            message += sent(slave.step(Poll(), now_ms))
        else:
            data = stream.master_to_slave[frame["at"] : frame["at"] + 12 + frame["bodySize"]]
            message += sent(slave.step(DataReceived(data), now_ms))
    assert message == stream.slave_to_master
    assert (log.min_offset, log.data) == (expected.min_offset, expected.data)
