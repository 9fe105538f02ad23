"""Master and slave sessions connected to each other: their handshake, and rejected peers."""

import pytest

from rocketpy.errors import ConfigInvalid
from rocketpy_broker.config.model import HaConfig
from rocketpy_broker.replication.ha.connected_slaves import ConnectedSlaves
from rocketpy_broker.replication.ha.epochs import Epoch, EpochState
from rocketpy_broker.replication.ha.master import AckReceived, Close, DataReceived, MasterSession, Poll
from rocketpy_broker.replication.ha.settings import HaSettings
from rocketpy_broker.replication.ha.slave import SlaveSession
from rocketpy_broker.replication.ha.wire import (
    CONTROL,
    REPORT,
    Hello,
    Join,
    Welcome,
    encode_control,
    frame,
)
from tests.unit.replication.ha.logs import MemoryLog, Pair, sent

TEXT = bytes(range(256)) * 64
FIRST = Epoch(1, 0, "one")
ONE = EpochState(epochs=(FIRST,), seen=1)
KNOWN = "s3"
PLAIN = HaSettings(handshake=False)


@pytest.mark.parametrize("chunk", [1, 7, 12, 8192, 1 << 20])
@pytest.mark.parametrize("handshake", [False, True])
def test_a_log_arrives_whole_however_it_is_cut(chunk: int, *, handshake: bool) -> None:
    """A slave would fail on a network that splits frames."""
    source = MemoryLog(TEXT, segment_bytes=1 << 20, epochs=ONE)
    pair = Pair(source, MemoryLog(), HaSettings(handshake=handshake), chunk=chunk)
    pair.run()
    source.data += b"more"
    pair.run()
    assert pair.closed == []
    assert pair.target.data == source.data
    assert pair.master.received == pair.slave.master_offset == source.max_offset


def test_a_slave_of_rocketpy_requests_the_whole_log_and_javas_gets_the_last_file() -> None:
    """A new slave would lack the older messages, though the master has them (QUIRKS 53)."""
    for handshake, first in ((True, 4096), (False, 12288)):
        source = MemoryLog(TEXT[:10000], min_offset=4096, epochs=ONE)
        pair = Pair(source, MemoryLog(), HaSettings(handshake=handshake))
        pair.run()
        assert (pair.target.min_offset, pair.target.max_offset) == (first, 14096)


def test_a_java_master_never_sees_the_greeting() -> None:
    """A Java master would mistake the greeting for an offset to start from.

    4.6.0 takes the last whole i64 of what it read; it starts once that is not negative.
    """
    log = MemoryLog(min_offset=4096)
    slave = SlaveSession(log, HaSettings(), broker_name="b", broker_id=1, nonce="n", now_ms=0)
    message = sent(slave.step(Poll(), 0))
    assert message == REPORT.pack(CONTROL)
    for now in range(100, 1000, 100):
        assert slave.step(Poll(), now) == []
    assert sent(slave.step(Poll(), 1000)) == REPORT.pack(4096)
    assert sent(slave.step(DataReceived(frame(4096, b"abc")), 1100)) == REPORT.pack(4099)


def test_a_late_response_is_ignored() -> None:
    """Slaves on a slow network would reconnect forever."""
    source = MemoryLog(TEXT, segment_bytes=1 << 20, epochs=ONE)
    slave = SlaveSession(MemoryLog(), HaSettings(), broker_name="b", broker_id=1, nonce="n", now_ms=0)
    master = MasterSession(source, HaSettings(), "m", 0)
    hello = sent(master.step(DataReceived(sent(slave.step(Poll(), 0))), 500))
    assert sent(slave.step(Poll(), 1001)) == REPORT.pack(0)
    assert slave.step(DataReceived(hello), 1002) == []


def test_silence_closes_either_end() -> None:
    """A slave whose machine vanished would count as connected for hours."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE), MemoryLog())
    pair.exchange()
    pair.source.data += b"more"
    pair.exchange()
    assert pair.master.received == pair.source.max_offset
    for end in (pair.master, pair.slave):
        assert not any(isinstance(effect, Close) for effect in end.step(Poll(), 20_000))
        assert any(isinstance(effect, Close) for effect in end.step(Poll(), 20_001))


def test_silence_counts_from_the_last_message() -> None:
    """A connection that is older than the timeout would be closed between two messages."""
    master = MasterSession(MemoryLog(TEXT), PLAIN, "", 0)
    slave = SlaveSession(MemoryLog(min_offset=4096), PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    for end, message in ((master, REPORT.pack(1)), (slave, frame(4096, b"x"))):
        end.step(DataReceived(message), 5_000)
        assert not any(isinstance(effect, Close) for effect in end.step(Poll(), 25_000))
        assert any(isinstance(effect, Close) for effect in end.step(Poll(), 25_001))


def test_a_pair_stays_together_without_messages() -> None:
    """Idle brokers would disconnect every 20 s."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE), MemoryLog())
    pair.run(seconds=100)
    assert pair.closed == []


@pytest.mark.parametrize(("heartbeat_ms", "stays"), [(5000, True), (19_000, True), (20_000, False)])
def test_a_heartbeat_interval_above_the_timeout_is_rejected_at_the_start(
    *, heartbeat_ms: int, stays: bool
) -> None:
    """Such a pair would disconnect whenever it is idle, and copy nothing until it has reconnected."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE), MemoryLog(), HaSettings(heartbeat_ms=heartbeat_ms))
    pair.run(seconds=100)
    assert (pair.closed == []) is stays
    if stays:
        assert HaConfig(heartbeat_ms=heartbeat_ms).heartbeat_ms == heartbeat_ms
    else:
        with pytest.raises(
            ConfigInvalid, match="haSendHeartbeatInterval is 20000; it must be at least 1000 ms below"
        ):
            HaConfig(heartbeat_ms=heartbeat_ms)


def test_bytes_from_elsewhere_close_the_connection() -> None:
    """A slave would write a hole or a second copy into its log."""
    for offset in (4095, 4097, 0):
        slave = SlaveSession(
            MemoryLog(min_offset=4096), PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0
        )
        slave.step(Poll(), 0)
        (effect,) = slave.step(DataReceived(frame(offset, b"xy")[:13]), 1)
        assert isinstance(effect, Close)


class CountingLog(MemoryLog):
    """Counts writes."""

    writes = 0

    def append(self, offset: int, data: bytes) -> None:
        self.writes += 1
        super().append(offset, data)


def test_frames_received_together_are_written_and_reported_once() -> None:
    """A slave far behind would make 32 writes of a megabyte, and would not know that it is behind."""
    log = CountingLog(min_offset=4096)
    slave = SlaveSession(log, PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    burst = b"".join(frame(4096 + at, TEXT[at : at + 100]) for at in range(0, 1000, 100))
    assert sent(slave.step(DataReceived(burst + frame(5096, b"tail")[:14]), 1)) == REPORT.pack(5096)
    assert (log.writes, bytes(log.data)) == (1, TEXT[:1000])
    assert slave.master_offset == 5096
    assert sent(slave.step(DataReceived(frame(5096, b"tail")[14:]), 2)) == REPORT.pack(5100)
    assert (log.writes, bytes(log.data)) == (2, TEXT[:1000] + b"tail")


@pytest.mark.parametrize("first_offset", [0, 4096])
@pytest.mark.parametrize("second", [4195, 4197, 4096])
def test_a_gap_between_frames_received_together_is_detected(second: int, first_offset: int) -> None:
    """Frames of one read would be joined across a gap, or the bytes before the gap would be lost."""
    log = MemoryLog(min_offset=first_offset)  # 0: it is empty, and begins where its master says
    slave = SlaveSession(log, PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    (effect,) = slave.step(
        DataReceived(frame(4096, TEXT[:100]) + frame(second, b"xy") + frame(4198, b"z")), 1
    )
    assert isinstance(effect, Close)
    assert f"sends from {second}, but this log ends at 4196" in effect.reason
    assert bytes(log.data) == TEXT[:100]


def test_a_heartbeat_in_the_middle_of_a_burst_changes_nothing() -> None:
    """A heartbeat, which has no body, would be written to the log, or split the burst into two writes."""
    log = CountingLog()
    slave = SlaveSession(log, PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    slave.step(DataReceived(frame(8192, b"ab") + frame(8194, b"") + frame(8194, b"cd")), 1)
    assert (log.min_offset, bytes(log.data), log.writes) == (8192, b"abcd", 1)


def test_heartbeats_ask_a_slave_for_its_offset_at_intervals() -> None:
    """Reports without news would double the traffic of an idle pair; no reports would disconnect it."""
    slave = SlaveSession(
        MemoryLog(min_offset=4096), HaSettings(handshake=False, heartbeat_ms=1000), broker_name="b",
        broker_id=1, nonce="", now_ms=0,
    )  # fmt: skip
    message = [now for now in range(0, 5001, 250) if slave.step(Poll(), now)]
    assert message == [0, 1250, 2500, 3750, 5000]


def test_a_slave_that_is_ahead_is_closed() -> None:
    """A sync master would count messages as safe that this slave does not have (#3015)."""
    for first in ([], [REPORT.pack(100)]):
        master = MasterSession(MemoryLog(TEXT[:200]), PLAIN, "", 0)
        for report in first:
            master.step(DataReceived(report), 1)
        effects = master.step(DataReceived(REPORT.pack(201)), 2)
        assert [type(effect) for effect in effects] == [Close]


def test_a_slave_behind_the_masters_first_file_is_closed() -> None:
    """The slave would stay connected without getting a byte."""
    master = MasterSession(MemoryLog(TEXT, min_offset=4096), PLAIN, "", 0)
    assert isinstance(master.step(DataReceived(REPORT.pack(4095)), 1)[0], Close)


@pytest.mark.parametrize(
    ("begin", "size", "changed_at", "is_refused"),
    [
        (0, 16384, 16383, True),
        (0, 16384, 12288, True),
        (0, 16384, None, False),
        (0, 4096, 0, True),  # the tail is the whole log
        (4096, 5000, 4999, False),  # the master lacks the beginning of the tail
        (4096, 5000, None, False),
    ],
)
def test_a_log_that_ends_with_other_bytes_is_rejected(
    begin: int, size: int, changed_at: int | None, *, is_refused: bool
) -> None:
    """A copy of another log would be continued: its consumers would get other messages than its master's."""
    copy = bytearray(TEXT[:size])
    if changed_at is not None:
        copy[changed_at] ^= 1
    source = MemoryLog(TEXT[begin:], min_offset=begin, segment_bytes=1 << 20, epochs=ONE)
    pair = Pair(source, MemoryLog(bytes(copy), segment_bytes=1 << 20, epochs=ONE))
    pair.run()
    if is_refused:
        assert "differ from this log" in pair.closed[0].reason
        assert any(close.is_final for close in pair.closed)
        assert pair.target.data == copy
    else:
        assert pair.closed == []
        assert pair.target.data == copy + TEXT[size:]


def test_a_whole_copy_that_knows_no_epochs_is_taken() -> None:
    """A copy made by RocketMQ would have to be deleted and copied a second time."""
    pair = Pair(MemoryLog(TEXT, segment_bytes=1 << 20, epochs=ONE), MemoryLog(TEXT, segment_bytes=1 << 20))
    pair.run()
    assert pair.closed == []
    assert pair.master.received == len(TEXT)


def test_a_slave_whose_common_part_has_expired_on_the_master_is_rejected() -> None:
    """The slave would reconnect repeatedly, and no message would say that its store must be emptied."""
    epochs = EpochState(epochs=(FIRST, Epoch(2, 3000, "new")), seen=2)
    source = MemoryLog(TEXT, min_offset=4096, segment_bytes=1 << 20, epochs=epochs)
    pair = Pair(source, MemoryLog(TEXT[:3500], segment_bytes=1 << 20, epochs=ONE))
    pair.run()
    why = "equal up to 3000, but this one starts at 4096"
    assert [close.is_final for close in pair.closed if why in close.reason] == [False, True]
    assert pair.target.max_offset == 3500


@pytest.mark.parametrize("handshake", [False, True])
def test_a_slave_counts_from_its_first_report(*, handshake: bool) -> None:
    """A SYNC_MASTER would let senders wait for a slave that has not reported its flushed offset."""
    settings = HaSettings(handshake=handshake, wants_flushed=True)
    pair = Pair(MemoryLog(TEXT, segment_bytes=1 << 20, epochs=ONE), MemoryLog(), settings)
    connected = ConnectedSlaves(behind_bytes_max=1 << 30)
    connected.add(pair.master, "here")
    assert pair.slave.master_offset == -1
    message = sent(pair.slave.step(Poll(), 0))
    while not pair.master.is_copying:
        reply = sent(pair.master.step(DataReceived(message), 0))
        if pair.master.is_copying:
            break
        message = sent(pair.slave.step(DataReceived(reply), 0))
    (state,) = connected.states(len(TEXT))
    assert state.flushed == -1
    assert connected.is_slave_ok(0) is not handshake
    assert pair.slave.master_offset == -1


def test_a_former_master_is_truncated_to_the_common_prefix() -> None:
    """A former master that returns would serve messages that its successor never had."""
    ours = MemoryLog(
        TEXT[:5000] + b"A" * 1000, epochs=EpochState(epochs=(FIRST, Epoch(2, 5000, "new")), seen=2)
    )
    loser = MemoryLog(TEXT[:5000] + b"B" * 2000, epochs=ONE)
    pair = Pair(ours, loser)
    pair.run()
    assert pair.closed == []
    assert loser.cut_off == [b"B" * 2000]
    assert loser.data == ours.data
    assert loser.epochs == ours.epochs


def test_an_old_master_is_not_followed() -> None:
    """A slave would cut messages that the promoted master acknowledged."""
    old = MemoryLog(TEXT[:5000], epochs=ONE)
    slave = MemoryLog(TEXT[:6000], epochs=EpochState(epochs=(FIRST, Epoch(2, 5500, "new")), seen=2))
    pair = Pair(old, slave)
    pair.run()
    assert "another broker was promoted" in pair.closed[0].reason
    assert any(close.is_final for close in pair.closed)
    assert len(slave.data) == 6000


def test_a_log_with_other_content_is_rejected() -> None:
    """The store of another broker, or a damaged one, would be continued."""
    for target in (
        MemoryLog(b"x" * 100),
        MemoryLog(b"x" * 100, epochs=EpochState(epochs=(Epoch(1, 0, "other"),), seen=1)),
        MemoryLog(TEXT[:99] + b"?", epochs=ONE),
        MemoryLog(TEXT[:100], epochs=ONE),
    ):
        pair = Pair(MemoryLog(TEXT, epochs=ONE, segment_bytes=1 << 20), target)
        pair.run()
        is_copy = target.data[:100] == TEXT[:100]
        assert (pair.closed == []) is is_copy
        assert (len(target.data) == 100) is not is_copy


def test_a_java_slaves_store_is_taken_over_when_it_is_a_copy() -> None:
    """A slave could not be switched from RocketMQ to rocketpy without copying everything."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE, segment_bytes=1 << 20), MemoryLog(TEXT[:777]))
    pair.run()
    assert pair.closed == []
    assert pair.target.data == TEXT


@pytest.mark.parametrize(("masters", "slaves"), [("a", ""), ("", "a"), ("a", "b")])
def test_a_peer_without_the_secret_gets_nothing(masters: str, slaves: str) -> None:
    """Each client that reaches the port could read every message, or feed a slave."""
    target = MemoryLog()
    pair = Pair(MemoryLog(TEXT, epochs=ONE), target, HaSettings(secret=masters), HaSettings(secret=slaves))
    pair.run()
    if masters:
        assert pair.closed
    assert bool(target.data) is not bool(masters or slaves)


def test_a_welcome_without_a_join_closes_the_connection() -> None:
    """A master could truncate the log of a slave that is copying, or skip the handshake."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE), MemoryLog())
    new = SlaveSession(MemoryLog(), HaSettings(), broker_name="b", broker_id=1, nonce="n", now_ms=0)
    pair.run()
    welcome = encode_control(Welcome(epochs=(FIRST,), start=0, wants_flushed=False, proof=""))
    for slave in (pair.slave, new):
        assert isinstance(slave.step(DataReceived(welcome), 4_000)[-1], Close)
    assert pair.target.data == TEXT


def test_both_know_the_secret() -> None:
    """A pair with a secret could not connect at all."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE), MemoryLog(), HaSettings(secret=KNOWN))
    pair.run()
    assert pair.closed == []
    assert pair.target.data == TEXT


def test_a_plain_slave_gets_nothing_from_a_master_with_a_secret() -> None:
    """A peer without the secret would be accepted."""
    master = MasterSession(MemoryLog(TEXT), HaSettings(secret=KNOWN), "n", 0)
    assert isinstance(master.step(DataReceived(REPORT.pack(0)), 1)[-1], Close)


def test_a_proof_outside_ascii_is_rejected() -> None:
    """Anyone could fill the log with tracebacks."""
    master = MasterSession(MemoryLog(TEXT), HaSettings(secret=KNOWN), "n", 0)
    master.step(DataReceived(REPORT.pack(CONTROL)), 1)
    join = Join(
        broker_name="b", broker_id=1, epochs=(), epoch_seen=0, max_offset=0, tail_bytes=0, tail_crc=0,
        nonce="n", proof="é" * 64,
    )  # fmt: skip
    assert isinstance(master.step(DataReceived(encode_control(join)), 2)[-1], Close)


def test_a_malformed_note_is_rejected() -> None:
    """Bytes that are not UTF-8 in the name of a note, or unterminated brackets, left a traceback each."""
    for note in (
        b'{"type":"jo\x9din"}',
        b'{"type":"\xff"}',
        b"[" * 100_000,
        b'{"type":"join","epochs":' + b"[" * 99_000,
    ):
        master = MasterSession(MemoryLog(TEXT), HaSettings(), "n", 0)
        master.step(DataReceived(REPORT.pack(CONTROL)), 1)
        assert isinstance(master.step(DataReceived(frame(CONTROL, note)), 2)[-1], Close)
        slave = SlaveSession(MemoryLog(), HaSettings(), broker_name="b", broker_id=1, nonce="s", now_ms=0)
        slave.step(Poll(), 0)
        assert isinstance(slave.step(DataReceived(frame(CONTROL, note)), 1)[-1], Close)


@pytest.mark.parametrize(
    ("max_offset", "tail_bytes"), [(-1, 0), (100, -1), (100, -(2**63)), (50, 100), (len(TEXT), 1 << 17)]
)
def test_a_slave_that_claims_impossible_offsets_is_rejected(max_offset: int, tail_bytes: int) -> None:
    """A master would read beyond its log, or a gigabyte of it while other clients wait."""
    master = MasterSession(MemoryLog(TEXT * 16, epochs=ONE), HaSettings(), "n", 0)
    master.step(DataReceived(REPORT.pack(CONTROL)), 1)
    join = Join(
        broker_name="b", broker_id=1, epochs=(FIRST,), epoch_seen=1, max_offset=max_offset,
        tail_bytes=tail_bytes, tail_crc=0, nonce="n", proof="",
    )  # fmt: skip
    closed = master.step(DataReceived(encode_control(join)), 2)[-1]
    assert isinstance(closed, Close)
    assert "invalid join message: a tail of" in closed.reason


@pytest.mark.parametrize("log", [MemoryLog(), MemoryLog(TEXT, epochs=ONE)])
@pytest.mark.parametrize("start", [-5, 2**63 - 1, 2**63])
def test_a_slave_leaves_a_master_with_an_impossible_start(log: MemoryLog, start: int) -> None:
    """A slave would make files of negative offsets, cut all that it has, or end with an overflow."""
    slave = SlaveSession(log, HaSettings(), broker_name="b", broker_id=1, nonce="s", now_ms=0)
    slave.step(Poll(), 0)
    slave.step(DataReceived(encode_control(Hello("m", wants_proof=False))), 1)
    welcome = Welcome(epochs=(FIRST,), start=start, wants_flushed=False, proof="")
    assert isinstance(slave.step(DataReceived(encode_control(welcome)), 2)[-1], Close)
    assert (log.min_offset, log.cut_off) == (0, [])


def test_a_copy_does_not_begin_at_the_end_of_64_bits() -> None:
    """An empty slave of a senseless master ended with an overflow at its next report."""
    log = MemoryLog()
    slave = SlaveSession(log, PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    assert isinstance(slave.step(DataReceived(frame(2**63 - 1, b"x")), 1)[-1], Close)
    assert log.is_empty


def test_a_flush_report_counts_flushed_bytes() -> None:
    """SYNC_MASTER with SYNC_FLUSH would lose messages when both machines lose power."""
    pair = Pair(MemoryLog(TEXT, epochs=ONE), MemoryLog(), HaSettings(wants_flushed=True))
    pair.run()
    assert (pair.master.received, pair.master.acked_offset) == (len(TEXT), 0)
    pair.target.flushed_offset = 500
    pair.exchange()
    assert pair.master.acked_offset == 500


def test_garbage_closes() -> None:
    """Bytes of an unknown client would be used as an offset or as a size to allocate."""
    master = MasterSession(MemoryLog(TEXT), PLAIN, "", 0)
    assert isinstance(master.step(DataReceived(REPORT.pack(-2)), 1)[-1], Close)
    slave = SlaveSession(MemoryLog(), PLAIN, broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    assert isinstance(slave.step(DataReceived(b"\0" * 8 + b"\x7f\xff\xff\xff"), 1)[-1], Close)
    slave = SlaveSession(MemoryLog(), HaSettings(), broker_name="b", broker_id=1, nonce="", now_ms=0)
    slave.step(Poll(), 0)
    assert isinstance(slave.step(DataReceived(frame(CONTROL, b"{}")), 1)[-1], Close)


def test_a_master_sends_as_much_as_the_socket_accepts() -> None:
    """A slave that is far behind would make its master hold the whole log in memory."""
    master = MasterSession(MemoryLog(TEXT, segment_bytes=1 << 20), HaSettings(batch_bytes=100), "", 0)
    assert master.step(DataReceived(REPORT.pack(1)), 1) == [AckReceived(1, -1)]
    assert len(sent(master.step(Poll(bytes_max=1000), 1))) == 12 + 10 * 112
    assert master.step(Poll(bytes_max=0), 2) == []


def test_unflushed_records_are_not_sent() -> None:
    """A slave would show records that its master loses, and its readers would skip the next ones."""

    class Flushing(MemoryLog):
        ready_offset = 5000

    log = Flushing(TEXT)
    pair = Pair(log, MemoryLog())
    pair.run()
    assert pair.target.data == TEXT[:5000]
    log.ready_offset = len(TEXT)
    pair.run()
    assert pair.target.data == TEXT
    late = MasterSession(Flushing(TEXT), PLAIN, "", 0)
    late.step(DataReceived(REPORT.pack(0)), 1)
    assert late.next_offset == 4096  # the last file that has something to send
    assert pair.closed == []


def test_one_slave_is_enough_and_it_must_not_be_far_behind() -> None:
    """SYNC_MASTER would wait for slaves that are offline (SLAVE_NOT_AVAILABLE)."""
    connected = ConnectedSlaves(behind_bytes_max=1000)
    assert (connected.acked, connected.is_slave_ok(0)) == (-1, False)
    fast, slow = (MasterSession(MemoryLog(TEXT), PLAIN, "", 0) for _ in range(2))
    connected.add(fast, "fast")
    connected.add(slow, "slow")
    assert not connected.is_slave_ok(10)
    assert [state.lag_bytes for state in connected.states(1500)] == [1500, 1500]
    slow.step(DataReceived(REPORT.pack(10)), 1)
    fast.step(DataReceived(REPORT.pack(500)), 1)
    assert connected.acked == 500
    assert connected.is_slave_ok(1499)
    assert not connected.is_slave_ok(1500)
    assert {state.address: state.lag_bytes for state in connected.states(1500)} == {
        "fast": 1000,
        "slow": 1490,
    }
    assert {state.address: state.lag_bytes for state in connected.states(400)} == {
        "fast": 0,
        "slow": 390,
    }
    connected.remove(fast)
    assert connected.acked == 10
    strict = ConnectedSlaves(behind_bytes_max=1000, joined_only=True)
    strict.add(slow, "slow")
    assert not strict.is_slave_ok(10)
