"""One Raft node: its requests and responses, and that no response leaves before the write."""

import logging
from typing import Any

import pytest

from rocketpy.errors import ConfigInvalid, StoreDamaged
from rocketpy.protocol.remoting.command import decode_command
from rocketpy.protocol.remoting.frame import FrameDecoder
from rocketpy_broker.replication.dledger.core.entry import Entry
from rocketpy_broker.replication.dledger.core.events import (
    Event,
    Ready,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    Tick,
)
from rocketpy_broker.replication.dledger.core.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PullEntriesRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    RaftMessage,
    RaftResponseCode,
    VoteRequest,
    VoteResponse,
    VoteResult,
    read_request,
)
from rocketpy_broker.replication.dledger.core.node import RaftNode
from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, Role, TermState
from rocketpy_broker.replication.dledger.core.settings import RaftSettings
from tests import golden_data
from tests.sim.proposals import ProposalResult, Proposals, Propose
from tests.sim.raft_disk import RaftDisk

PEERS = {"n0": "a:1", "n1": "b:1", "n2": "c:1"}


class Bench:
    """A node and its disk, driven by hand."""

    def __init__(self, peers: dict[str, str] | None = None, **settings: Any) -> None:
        self.disk = RaftDisk()
        self.compares: list[SendRequest] = []
        """The entries that were pushed when this peer was elected."""
        self.now = 0.0
        self.proposals = Proposals()
        self.results: list[ProposalResult] = []
        """Results that clients got during the last `do`."""
        self.settings = RaftSettings(group="g", self_id="n0", peers=peers or PEERS, **settings)
        self.node = RaftNode(self.settings, self.disk, TermState(), LedgerCheckpoint(), lambda: 0.5, self.now)

    def do(self, event: Event | Propose) -> list[Ready]:
        """Step, then process the ready work until none is left."""
        if isinstance(event, Propose):
            self.proposals.propose(self.node, event, self.now)
        else:
            self.node.step(event, self.now)
        done = []
        while ready := self.node.take_ready():
            self.disk.write(ready.term_state, ready.write)
            done.append(ready)
            self.node.advance(self.now)
        self.proposals.tick(self.node, self.now)
        self.results = self.proposals.take()
        return done

    def ask(self, message: RaftMessage) -> RaftMessage:
        """Step a request; return the response."""
        message.group, message.remote_id = message.group or "g", message.remote_id or "n0"
        (response,) = [
            response for ready in self.do(RequestReceived(1, message)) for response in ready.responses
        ]
        return response.message

    def lead(self) -> None:
        """Let the others elect this peer."""
        for ready in self.do(Tick()):
            for request in ready.requests:
                response = VoteResponse(vote_result=VoteResult.ACCEPT, term=0)
                done = self.do(ResponseReceived(request.number, response))
                self.compares += [request for ready in done for request in ready.requests]
        self.compares = [
            request for request in self.compares if isinstance(request.message, PushEntryRequest)
        ]
        assert self.node.role is Role.LEADER


def test_a_follower_responds_to_a_recorded_leader_as_java_did() -> None:
    """QUIRKS 59, 60 and 61: a Java leader could not lead a peer of rocketpy."""
    frames = golden_data.frames("raft-frames", "dledger")
    responses = {frame.info["request"]["n"]: frame for frame in frames if frame.info["kind"] == "response"}
    bench = Bench(file_bytes=65536)
    bench.settings = RaftSettings(group="RaftNode00", self_id="n2", peers=PEERS, file_bytes=65536)
    bench.node = RaftNode(bench.settings, bench.disk, TermState(), LedgerCheckpoint(), lambda: 0.5, 0.0)
    said = 0
    for frame in frames:
        info = frame.info
        if info["kind"] != "request" or info["serverPeer"] != "n2" or info["codeName"] == "VOTE":
            continue
        if "kill" in info["step"] or info["bodyJson"]["term"] != 0:
            break
        (cut,) = FrameDecoder().feed(frame.data)
        (theirs,) = FrameDecoder().feed(responses[info["n"]].data)
        ours = bench.ask(read_request(decode_command(cut)))
        assert ours.encode() == theirs.body, info["n"]
        said += 1
    assert said > 150
    assert bench.node.state.committed_index == 149


def test_no_response_leaves_before_the_write() -> None:
    """A promised vote or entry could be lost by a power failure (I1, I6)."""
    bench = Bench()
    bench.ask(HeartBeatRequest(leader_id="n2", term=3))
    bench.node.step(RequestReceived(1, VoteRequest(group="g", remote_id="n0", leader_id="n1", term=3)), 0)
    ready = bench.node.take_ready()
    assert ready.term_state == (3, "n1")
    assert [response.request_id for response in ready.responses] == [1]
    assert not bench.node.take_ready(), "a second Ready before the first is stored"
    bench.node.advance(0)
    entry = Entry.of(0, 3, 0, b"a")
    push = PushEntryRequest(
        group="g", remote_id="n0", leader_id="n2", term=3, entry=entry, type=PushType.TRUNCATE
    )
    bench.node.step(RequestReceived(2, push), 0)
    ready = bench.node.take_ready()
    assert ready.write.entries == (entry,)
    assert [response.request_id for response in ready.responses] == [2]


def test_an_append_is_acknowledged_by_a_majority() -> None:
    """A client would get SUCCESS for an entry that only one peer has."""
    bench = Bench()
    bench.lead()
    readies = bench.do(Propose(7, b"hello"))
    assert bench.results == []
    (compare,) = [request for ready in readies for request in ready.requests if request.peer == "n1"]
    assert isinstance(compare.message, PushEntryRequest)
    assert compare.message.type is PushType.COMPARE
    refused = PushEntryResponse(code=406, begin_index=-1, end_index=-1, index=0, term=0)
    (truncate,) = [
        request for ready in bench.do(ResponseReceived(compare.number, refused)) for request in ready.requests
    ]
    assert isinstance(truncate.message, PushEntryRequest)
    assert truncate.message.type is PushType.TRUNCATE
    bench.do(ResponseReceived(truncate.number, PushEntryResponse(index=0, end_index=0, term=0)))
    assert bench.results == [ProposalResult(7, RaftResponseCode.SUCCESS, 0, 0)]


def _followed(bench: Bench) -> list[SendRequest]:
    """Let n1 have one entry, then append three more; return the requests that push them."""
    bench.lead()
    (compare,) = _pushed(bench, Propose(0, b"x"), PushType.COMPARE)
    equal = PushEntryResponse(index=0, begin_index=0, end_index=0, term=0)
    bench.do(ResponseReceived(compare.number, equal))
    return [
        request
        for proposal_id in (1, 2, 3)
        for request in _pushed(bench, Propose(proposal_id, b"x"), PushType.APPEND)
    ]


def test_each_append_is_acknowledged_as_soon_as_a_majority_has_it() -> None:
    """Under load, no producer would get a response, since the newest entry is never committed."""
    bench = Bench()
    requests = _followed(bench)
    for proposal_id, request in enumerate(requests, 1):
        bench.do(
            ResponseReceived(
                request.number, PushEntryResponse(index=proposal_id, end_index=proposal_id, term=0)
            )
        )
        assert bench.results == [
            ProposalResult(proposal_id, RaftResponseCode.SUCCESS, proposal_id, 49 * proposal_id)
        ]


def test_a_repeated_push_does_not_start_a_comparison() -> None:
    """Each repeated push would make the leader compare a slow follower and send all entries to it."""
    bench = Bench()
    requests = _followed(bench)
    twice = PushEntryResponse(
        code=RaftResponseCode.REPEATED_PUSH, index=2, begin_index=0, end_index=0, term=0
    )
    assert _pushed(bench, ResponseReceived(requests[1].number, twice), PushType.COMPARE) == []
    bench.now += 600
    assert _pushed(bench, Tick(), PushType.COMPARE) == []
    bench.do(ResponseReceived(requests[0].number, PushEntryResponse(index=1, end_index=1, term=0)))
    assert [result.proposal_id for result in bench.results] == [1]


def test_an_append_that_no_majority_gets_ends() -> None:
    """A producer would wait forever, or never try another broker."""
    bench = Bench()
    bench.lead()
    bench.do(Propose(7, b"hello"))
    bench.now = 2999
    bench.do(Tick())
    assert bench.results == []
    bench.now = 3000
    code = RaftResponseCode.WAIT_QUORUM_ACK_TIMEOUT
    bench.do(Tick())
    assert bench.results == [ProposalResult(7, code, 0, 0)]


def test_appends_end_when_another_leads() -> None:
    """A waiting producer would mistake an entry of the new leader for its own."""
    bench = Bench()
    bench.lead()
    bench.do(Propose(7, b"hello"))
    bench.do(RequestReceived(1, HeartBeatRequest(group="g", remote_id="n0", leader_id="n1", term=4)))
    assert [result.code for result in bench.results] == [RaftResponseCode.TERM_CHANGED]
    bench.do(Propose(8, b"more"))
    assert bench.results == [ProposalResult(8, RaftResponseCode.NOT_LEADER)]


def test_a_leader_limits_its_pending_entries() -> None:
    """A leader that is alone would fill its memory."""
    bench = Bench(pending_max=2)
    bench.lead()
    for proposal_id in range(2):
        bench.do(Propose(proposal_id, b"x"))
        assert bench.results == []
    bench.do(Propose(2, b"x"))
    assert bench.results == [ProposalResult(2, RaftResponseCode.LEADER_PENDING_FULL)]


def test_a_leader_without_responses_steps_down_after_six_seconds() -> None:
    """Clients would write to the minority of a partitioned group."""
    bench = Bench()
    bench.lead()
    for bench.now in (2000, 4000, 6000):
        bench.do(Tick())
        assert bench.node.role is Role.LEADER
    bench.now = 6001
    bench.do(Tick())
    assert bench.node.role is Role.CANDIDATE


def test_a_follower_starts_an_election_after_six_seconds_of_silence() -> None:
    """The group would stay without a leader, or every short delay would start an election."""
    bench = Bench()
    bench.ask(HeartBeatRequest(leader_id="n1", term=2))
    bench.now = 6000
    assert bench.do(Tick()) == []
    bench.now = 6001
    bench.do(Tick())
    requests = [request for ready in bench.do(Tick()) for request in ready.requests]
    assert [request.message.term for request in requests] == [2, 2], "a probe has the old term"


def test_a_ledger_from_a_later_term_than_the_vote_is_rejected() -> None:
    """A flipped bit in its newest entry's term would make a peer everybody's leader (I9)."""
    disk, settings = RaftDisk(), Bench().settings
    disk.entries = [Entry.of(0, 3, 0, b"x")]
    RaftNode(settings, disk, TermState(3), LedgerCheckpoint(), lambda: 0.5, 0.0)
    with pytest.raises(StoreDamaged):
        RaftNode(settings, disk, TermState(2), LedgerCheckpoint(), lambda: 0.5, 0.0)


def test_a_waiting_proposal_keeps_its_turn() -> None:
    """The peer with the newest ledger would never be elected, while others start elections (I10)."""
    bench = Bench()
    bench.disk.entries = [Entry.of(0, 0, 0, b"x")]
    bench.node = RaftNode(bench.settings, bench.disk, TermState(0), LedgerCheckpoint(), lambda: 0.5, 0.0)
    started = False
    for term in range(1, 20):
        bench.now += 100
        request = VoteRequest(leader_id="n1", term=term)
        assert isinstance(response := bench.ask(request), VoteResponse)
        assert response.vote_result is VoteResult.REJECT_TERM_NOT_READY
        requests = [request for ready in bench.do(Tick()) for request in ready.requests]
        for probe in requests:
            bench.do(ResponseReceived(probe.number, None))
        started |= bool(requests)
    assert started


@pytest.mark.parametrize("rng", [0.0, 0.25, 0.999])
def test_elections_start_at_random_times(rng: float) -> None:
    """Peers that start elections at the same time would split the votes each time."""
    bench = Bench(vote_interval_ms_min=300, vote_interval_ms_max=1300)
    bench.node = RaftNode(bench.settings, bench.disk, TermState(), LedgerCheckpoint(), lambda: rng, 0.0)
    bench.do(Tick())  # starts an election, and then a peer of a newer term does
    bench.ask(VoteRequest(leader_id="n1", term=5))
    started: list[SendRequest] = []
    while not started:
        bench.now += 1
        started = [request for ready in bench.do(Tick()) for request in ready.requests]
    assert bench.now == pytest.approx(300 + 1000 * rng, abs=1)


def test_clients_ask_a_leader() -> None:
    """DLedger's own client could not use this ledger."""
    bench = Bench({"n0": "a:1"})
    refused = bench.ask(AppendEntryRequest(body=b"x"))
    assert isinstance(refused, AppendEntryResponse)
    assert (refused.code, refused.index) == (RaftResponseCode.NOT_LEADER, -1)
    bench.do(Tick())
    assert bench.ask(AppendEntryRequest(body=b"x")).code == RaftResponseCode.UNSUPPORTED
    bench.do(Propose(1, b"x"))
    got = bench.ask(GetEntriesRequest(begin_index=0))
    assert isinstance(got, GetEntriesResponse)
    assert [entry.body for entry in got.entries] == [b"x"]
    assert bench.ask(GetEntriesRequest(begin_index=1)).code == RaftResponseCode.INDEX_OUT_OF_RANGE
    metadata = bench.ask(MetadataRequest())
    assert isinstance(metadata, MetadataResponse)
    assert (metadata.leader_id, metadata.peers) == ("n0", {"n0": "a:1"})
    assert bench.ask(PullEntriesRequest()).code == RaftResponseCode.UNSUPPORTED


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (HeartBeatRequest(remote_id="n1", leader_id="n2"), RaftResponseCode.UNKNOWN_MEMBER),
        (HeartBeatRequest(group="h", leader_id="n2"), RaftResponseCode.UNKNOWN_GROUP),
        (HeartBeatRequest(leader_id="n9"), RaftResponseCode.UNKNOWN_MEMBER),
        (HeartBeatRequest(leader_id="n0"), RaftResponseCode.UNEXPECTED_MEMBER),
        (PushEntryRequest(leader_id="n9", type=PushType.COMMIT), RaftResponseCode.UNKNOWN_MEMBER),
        (PushEntryRequest(leader_id="n1", term=9), RaftResponseCode.UNEXPECTED_ARGUMENT),
    ],
)
def test_unknown_peers_are_rejected(message: RaftMessage, code: RaftResponseCode) -> None:
    """A peer of another group, or one with a wrong configuration, could write into this ledger."""
    assert Bench().ask(message).code == code


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (VoteRequest(leader_id="n9", term=2), VoteResult.REJECT_UNKNOWN_LEADER),
        (VoteRequest(leader_id="n0", term=2), VoteResult.REJECT_UNEXPECTED_LEADER),
        (VoteRequest(leader_id="n1", term=1), VoteResult.REJECT_EXPIRED_VOTE_TERM),
        (VoteRequest(leader_id="n1", term=3), VoteResult.REJECT_TERM_NOT_READY),
        (VoteRequest(leader_id="n1", term=2), VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        (VoteRequest(leader_id="n1", term=2, ledger_end_term=2), VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        (VoteRequest(leader_id="n1", term=2, ledger_end_term=2, ledger_end_index=0), VoteResult.ACCEPT),
    ],
)
def test_votes(request_: VoteRequest, result: VoteResult) -> None:
    """A peer without an acknowledged entry could be elected, or two peers for one term."""
    bench = Bench()
    bench.disk.write(None, _write_of(Entry.of(0, 2, 0, b"a")))
    bench.node = RaftNode(bench.settings, bench.disk, TermState(2), LedgerCheckpoint(), lambda: 0.5, 0.0)
    response = bench.ask(request_)
    assert isinstance(response, VoteResponse)
    assert response.vote_result is result
    if result is VoteResult.ACCEPT:
        again = bench.ask(VoteRequest(leader_id="n2", term=2, ledger_end_term=2, ledger_end_index=5))
        assert isinstance(again, VoteResponse)
        assert again.vote_result is VoteResult.REJECT_ALREADY_VOTED


def _write_of(entry: Entry) -> Any:
    bench = Bench({"n0": "a:1"})
    bench.node.view.append(entry)
    return bench.node.view.take()


def test_pushes_out_of_order_are_appended_in_order() -> None:
    """Java's threads overtake each other: every such push would cost a COMPARE."""
    bench = Bench()
    entries = [Entry.of(index, 0, index * 49, b"x") for index in range(3)]

    def push(request_id: int, kind: PushType, entry: Entry, commit: int) -> list[tuple[int, int]]:
        request = PushEntryRequest(
            group="g", remote_id="n0", leader_id="n1", term=0, entry=entry, type=kind, commit_index=commit
        )
        done = bench.do(RequestReceived(request_id, request))
        return [
            (response.request_id, response.message.code) for ready in done for response in ready.responses
        ]

    assert push(0, PushType.TRUNCATE, entries[0], -1) == [(0, 200)]
    assert push(2, PushType.APPEND, entries[2], 1) == []
    assert push(3, PushType.APPEND, entries[2], 1) == [(3, RaftResponseCode.REPEATED_PUSH)]
    assert push(1, PushType.APPEND, entries[1], 0) == [(1, 200), (2, 200)]
    assert bench.disk.entries == entries
    assert bench.node.state.committed_index == 1
    assert push(4, PushType.APPEND, Entry.of(9, 0, 441, b"x"), 1) == []
    bench.now = 1001
    late = [response for ready in bench.do(Tick()) for response in ready.responses]
    assert [(response.request_id, response.message.code) for response in late] == [(4, 406)]


def test_a_leader_of_an_old_term_gets_the_new_one() -> None:
    """The old leader would keep the peers that cannot receive the heartbeats of the new one."""
    bench = Bench()
    bench.ask(HeartBeatRequest(leader_id="n1", term=5))
    response = bench.ask(HeartBeatRequest(leader_id="n2", term=4))
    assert isinstance(response, HeartBeatResponse)
    assert (response.code, response.term) == (RaftResponseCode.EXPIRED_TERM, 5)
    push = bench.ask(PushEntryRequest(leader_id="n2", term=4, type=PushType.COMMIT))
    assert (push.code, push.term) == (RaftResponseCode.EXPIRED_TERM, 5)


def test_impossible_settings_are_rejected() -> None:
    """A peer that is missing in its own group would never lead, without an error."""
    with pytest.raises(ConfigInvalid, match="n7"):
        RaftSettings(group="g", self_id="n7", peers=PEERS)
    with pytest.raises(ConfigInvalid, match="vote interval"):
        RaftSettings(group="g", self_id="n0", peers=PEERS, vote_interval_ms_min=1000)


def test_a_restarted_leader_starts_an_election_in_a_new_term() -> None:
    """A peer could lead one term twice, with other entries under the same indexes."""
    bench = Bench()
    bench.node = RaftNode(
        bench.settings, bench.disk, TermState(4, "n0"), LedgerCheckpoint(), lambda: 0.5, bench.now
    )
    (ready,) = bench.do(Tick())
    assert [request.message.term for request in ready.requests] == [4, 4]
    for request in ready.requests:
        bench.do(ResponseReceived(request.number, VoteResponse(vote_result=VoteResult.ACCEPT, term=4)))
    assert bench.node.role is Role.CANDIDATE
    bench.now += 1000
    (ready,) = bench.do(Tick())
    assert ready.term_state == (5, "n0")
    assert [request.message.term for request in ready.requests] == [5, 5]


def test_a_restarted_peer_does_not_disturb_a_leader() -> None:
    """Every restart of a follower would end the leader's term, and for a while nothing could be sent."""
    bench = Bench()
    bench.node = RaftNode(
        bench.settings, bench.disk, TermState(4, "n1"), LedgerCheckpoint(), lambda: 0.5, bench.now
    )
    (ready,) = bench.do(Tick())
    response = VoteResponse(vote_result=VoteResult.REJECT_ALREADY_HAS_LEADER, term=4)
    bench.do(ResponseReceived(ready.requests[0].number, response))
    for _ in range(3):
        bench.now += 1900
        assert bench.do(Tick()) == []
    bench.ask(HeartBeatRequest(leader_id="n1", term=4))
    assert bench.node.role is Role.FOLLOWER
    assert bench.node.state.term == 4


def _push(entry: Entry | None, kind: PushType, commit: int = -1) -> PushEntryRequest:
    return PushEntryRequest(leader_id="n1", term=3, entry=entry, type=kind, commit_index=commit)


def test_a_follower_starts_where_the_leader_s_ledger_begins() -> None:
    """A peer that was offline for longer than the retention could never return."""
    bench = Bench()
    bench.ask(_push(Entry.of(0, 0, 0, b"old"), PushType.TRUNCATE))
    bench.ask(_push(Entry.of(1, 0, 51, b"old"), PushType.APPEND))
    bench.ask(HeartBeatRequest(leader_id="n1", term=3))
    kept = [Entry.of(100, 2, 5000, b"kept"), Entry.of(101, 3, 5052, b"kept")]
    assert bench.ask(_push(kept[0], PushType.TRUNCATE, 100)).code == RaftResponseCode.SUCCESS
    assert bench.ask(_push(kept[1], PushType.APPEND, 100)).code == RaftResponseCode.SUCCESS
    assert bench.disk.entries == kept
    assert bench.node.state.committed_index == 100


def test_a_leader_whose_ledger_begins_later_truncates_an_empty_follower() -> None:
    """A leader would forever compare entries that an empty follower does not have."""
    bench = Bench()
    bench.disk.entries = [Entry.of(index, -1, index * 49, b"x") for index in (100, 101, 102)]
    bench.node = RaftNode(bench.settings, bench.disk, TermState(), LedgerCheckpoint(), lambda: 0.5, 0.0)
    bench.lead()
    requests = [request for ready in bench.do(Propose(1, b"y")) for request in ready.requests]
    assert requests == []
    sent = [request for request in bench.compares if request.peer == "n1"]
    empty = PushEntryResponse(code=406, begin_index=-1, end_index=-1, index=102, term=0)
    (request,) = [
        request for ready in bench.do(ResponseReceived(sent[0].number, empty)) for request in ready.requests
    ]
    assert isinstance(request.message, PushEntryRequest)
    assert (request.message.type, request.message.entry) == (PushType.TRUNCATE, bench.disk.entries[0])


def test_a_restarted_follower_is_compared_without_new_entries() -> None:
    """In an idle group, a follower would never get its lost entries, and show no committed ones."""
    follower = Bench()
    entry = Entry.of(0, 3, 0, b"kept")
    follower.disk.entries = [entry]
    state = TermState(3, None)
    follower.node = RaftNode(follower.settings, follower.disk, state, LedgerCheckpoint(), lambda: 0.5, 0.0)
    assert follower.ask(_push(None, PushType.COMMIT, 0)).code == RaftResponseCode.INCONSISTENT_STATE
    assert follower.ask(_push(entry, PushType.COMPARE)).code == RaftResponseCode.SUCCESS
    assert follower.ask(_push(None, PushType.COMMIT, 0)).code == RaftResponseCode.SUCCESS
    assert follower.node.state.committed_index == 0

    leader = Bench()
    leader.lead()
    (compare,) = [
        request for ready in leader.do(Propose(7, b"x")) for request in ready.requests if request.peer == "n1"
    ]
    equal = PushEntryResponse(index=0, begin_index=0, end_index=0, term=0)
    leader.do(ResponseReceived(compare.number, equal))
    leader.now += leader.settings.commit_push_ms + 1
    (commit,) = [request for ready in leader.do(Tick()) for request in ready.requests if request.peer == "n1"]
    assert isinstance(commit.message, PushEntryRequest)
    assert commit.message.type is PushType.COMMIT
    again = PushEntryResponse(code=RaftResponseCode.INCONSISTENT_STATE, term=0)
    (request,) = [
        request for ready in leader.do(ResponseReceived(commit.number, again)) for request in ready.requests
    ]
    assert isinstance(request.message, PushEntryRequest)
    assert (request.peer, request.message.type) == ("n1", PushType.COMPARE)


@pytest.mark.parametrize("kind", [PushType.APPEND, PushType.TRUNCATE, PushType.COMPARE])
def test_committed_entries_are_kept(kind: PushType) -> None:
    """openmessaging/dledger #316: a wrong leader would truncate acknowledged messages."""
    bench = Bench()
    entry = Entry.of(0, 3, 0, b"mine")
    bench.ask(_push(entry, PushType.TRUNCATE, 0))
    bench.ask(HeartBeatRequest(leader_id="n1", term=4))
    other = PushEntryRequest(leader_id="n1", term=4, entry=Entry.of(0, 4, 0, b"his!"), type=kind)
    assert bench.ask(other).code == RaftResponseCode.INCONSISTENT_STATE
    assert bench.disk.entries == [entry]


def test_an_entry_for_another_place_is_rejected() -> None:
    """Peers with different file sizes would have different files, and message offsets."""
    bench = Bench()
    bench.ask(_push(Entry.of(0, 3, 0, b"a"), PushType.TRUNCATE))
    response = bench.ask(_push(Entry.of(1, 3, 1000, b"b"), PushType.APPEND))
    assert response.code == RaftResponseCode.INCONSISTENT_STATE
    assert bench.disk.end_index == 0


@pytest.mark.parametrize(
    ("code", "term", "role"),
    [
        (RaftResponseCode.EXPIRED_TERM, 9, Role.CANDIDATE),
        (RaftResponseCode.INCONSISTENT_LEADER, -1, Role.CANDIDATE),
        (RaftResponseCode.TERM_NOT_READY, -1, Role.LEADER),
        (RaftResponseCode.SUCCESS, -1, Role.LEADER),
        (RaftResponseCode.SUCCESS, 9, Role.LEADER),
        (RaftResponseCode.UNKNOWN_MEMBER, 9, Role.LEADER),
    ],
)
def test_a_leader_handles_responses_to_heartbeats(code: int, term: int, role: Role) -> None:
    """A leader whose term is over would accept messages that it cannot commit."""
    bench = Bench()
    bench.lead()
    bench.now = 2000
    for ready in bench.do(Tick()):
        for request in ready.requests:
            if isinstance(request.message, HeartBeatRequest):
                bench.do(ResponseReceived(request.number, HeartBeatResponse(code=code, term=term)))
    assert bench.node.role is role
    bench.now = 2301
    requests = [request for ready in bench.do(Tick()) for request in ready.requests]
    assert any(isinstance(request.message, HeartBeatRequest) for request in requests) == (code == 416)


def test_a_truncation_keeps_the_common_entries() -> None:
    """A follower would discard the entries that it shares with its leader, and fetch them a second time."""
    bench = Bench()
    mine = [Entry.of(index, 2, index * 49, b"x") for index in range(3)]
    bench.ask(_push(mine[0], PushType.TRUNCATE))
    for entry in mine[1:]:
        bench.ask(_push(entry, PushType.APPEND))
    other = Entry.of(1, 4, 49, b"y")
    for entry, kind in ((mine[0], PushType.COMPARE), (other, PushType.TRUNCATE)):
        push = PushEntryRequest(leader_id="n1", term=4, entry=entry, type=kind, commit_index=-1)
        assert bench.ask(push).code == RaftResponseCode.SUCCESS
    assert bench.disk.entries == [mine[0], other]


def test_an_early_push_that_does_not_fit_is_rejected() -> None:
    """The leader would wait for a response until the timeout, and then send the same entry."""
    bench = Bench()
    entries = [Entry.of(index, 0, index * 49, b"x") for index in range(3)]
    entries[2] = Entry.of(2, 0, 999, b"x")
    said = []
    for request_id, kind in ((0, PushType.TRUNCATE), (2, PushType.APPEND), (1, PushType.APPEND)):
        push = PushEntryRequest(
            group="g",
            remote_id="n0",
            leader_id="n1",
            term=0,
            entry=entries[request_id],
            type=kind,
            commit_index=-1,
        )
        said += [
            response for ready in bench.do(RequestReceived(request_id, push)) for response in ready.responses
        ]
    assert [(response.request_id, response.message.code) for response in said] == [
        (0, 200),
        (1, 200),
        (2, 406),
    ]
    assert bench.disk.entries == entries[:2]


def _pushed(bench: Bench, event: Event | Propose, kind: PushType) -> list[SendRequest]:
    """The pushes of this kind that n1 gets after an event."""
    requests = [request for ready in bench.do(event) for request in ready.requests if request.peer == "n1"]
    pushes = [
        (request, request.message) for request in requests if isinstance(request.message, PushEntryRequest)
    ]
    return [request for request, message in pushes if message.type is kind]


def test_a_compare_without_a_response_is_repeated_after_a_pause() -> None:
    """A leader would send thousands of requests a second to a peer that is down."""
    bench = Bench()
    bench.lead()
    (compare,) = _pushed(bench, Propose(7, b"x"), PushType.COMPARE)
    bench.now = 300
    assert _pushed(bench, ResponseReceived(compare.number, None), PushType.COMPARE) == []
    bench.now = 799
    assert _pushed(bench, Tick(), PushType.COMPARE) == []
    bench.now = 800
    assert len(_pushed(bench, Tick(), PushType.COMPARE)) == 1


def test_a_follower_with_more_entries_is_cut_before_it_gets_others() -> None:
    """Entries of an old leader would conflict with each new entry, and never be truncated."""
    bench = Bench()
    bench.lead()
    (compare,) = _pushed(bench, Propose(7, b"x"), PushType.COMPARE)
    longer = PushEntryResponse(code=200, begin_index=0, end_index=3, index=0, term=0)
    bench.node.step(ResponseReceived(compare.number, longer), bench.now)
    pushes = [
        request.message.type
        for request in bench.node.take_ready().requests
        if request.peer == "n1" and isinstance(request.message, PushEntryRequest)
    ]
    assert pushes == [PushType.TRUNCATE]


def test_the_newest_entry_of_a_follower_that_lost_entries_is_compared_first() -> None:
    """A leader would search the common end by bisection, with a round trip for each step."""
    bench = Bench()
    bench.lead()
    (compare,) = _pushed(bench, Propose(0, b"x"), PushType.COMPARE)
    same = PushEntryResponse(code=200, begin_index=0, end_index=0, index=0, term=0)
    requests = _pushed(bench, ResponseReceived(compare.number, same), PushType.APPEND)
    for number in range(1, 10):
        requests += _pushed(bench, Propose(number, b"x"), PushType.APPEND)
    lost = PushEntryResponse(code=406, begin_index=0, end_index=7, index=9, term=0)
    (compare,) = _pushed(bench, ResponseReceived(requests[-1].number, lost), PushType.COMPARE)
    (compare,) = _pushed(bench, ResponseReceived(compare.number, lost), PushType.COMPARE)
    assert isinstance(compare.message, PushEntryRequest)
    assert compare.message.entry is not None
    assert compare.message.entry.index == 7


@pytest.mark.parametrize(
    ("code", "term", "role"),
    [
        (RaftResponseCode.EXPIRED_TERM, 9, Role.CANDIDATE),
        (RaftResponseCode.EXPIRED_TERM, 0, Role.LEADER),
        (RaftResponseCode.INCONSISTENT_STATE, 9, Role.LEADER),
    ],
)
def test_a_leader_learns_from_a_push_that_its_term_is_over(code: int, term: int, role: Role) -> None:
    """Until its next heartbeat, a former leader would accept messages that it cannot commit."""
    bench = Bench()
    bench.lead()
    (compare,) = _pushed(bench, Propose(7, b"x"), PushType.COMPARE)
    bench.do(
        ResponseReceived(
            compare.number, PushEntryResponse(code=code, begin_index=-1, end_index=-1, term=term)
        )
    )
    assert bench.node.role is role


def test_a_truncation_that_is_rejected_leads_to_another_compare() -> None:
    """A leader would repeat a truncation that its follower can never make, without a pause."""
    bench = Bench()
    bench.lead()
    (compare,) = _pushed(bench, Propose(7, b"x"), PushType.COMPARE)
    bench.now = 300
    refused = PushEntryResponse(code=406, begin_index=-1, end_index=-1, index=0, term=0)
    (cut,) = _pushed(bench, ResponseReceived(compare.number, refused), PushType.TRUNCATE)
    assert _pushed(bench, ResponseReceived(cut.number, refused), PushType.COMPARE) == []
    bench.now = 799
    assert _pushed(bench, Tick(), PushType.COMPARE) == []
    bench.now = 800
    assert len(_pushed(bench, Tick(), PushType.COMPARE)) == 1


def test_a_leader_limits_the_bytes_sent_ahead() -> None:
    """A slow follower would make its leader hold its whole backlog in memory."""
    bench = Bench(in_flight_bytes_max=200)
    bench.lead()
    (compare,) = _pushed(bench, Propose(0, bytes(52)), PushType.COMPARE)
    equal = PushEntryResponse(index=0, begin_index=0, end_index=0, term=0)
    bench.do(ResponseReceived(compare.number, equal))
    sent = [
        request
        for proposal_id in range(1, 5)
        for request in _pushed(bench, Propose(proposal_id, bytes(52)), PushType.APPEND)
    ]
    assert len(sent) == 2  # of 100 bytes each
    done = PushEntryResponse(index=1, begin_index=0, end_index=1, term=0)
    assert len(_pushed(bench, ResponseReceived(sent[0].number, done), PushType.APPEND)) == 1


def test_changes_of_state_are_logged_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    """After an incident, nobody could say which peer led which term, and why it changed."""
    caplog.set_level(logging.DEBUG, "rocketpy.broker.dledger")
    bench = Bench()
    bench.lead()
    bench.do(Propose(1, b"one"))
    bench.now += 7_000
    bench.do(Tick())
    bench.ask(VoteRequest(leader_id="n2", term=1, ledger_end_term=0, ledger_end_index=0))
    bench.ask(VoteRequest(leader_id="n2", term=1, ledger_end_term=0, ledger_end_index=0))
    append = Entry.of(1, 1, bench.node.view.next_entry_pos(3), b"two")
    for kind, entry in ((PushType.COMPARE, bench.node.view.get(0)), (PushType.APPEND, append)):
        bench.ask(PushEntryRequest(commit_index=1, entry=entry, leader_id="n1", term=1, type=kind))
    bench.now += 7_000
    bench.do(Tick())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "peer n0 starts as candidate of term -1; vote: None; committed index: -1"),
        ("INFO", "peer n0: candidate of term -1 -> candidate of term 0: starts an election"),
        ("INFO", "peer n0: vote in term 0: None -> n0: stands for election"),
        ("INFO", "peer n0: candidate of term 0 -> leader of term 0: 2 of 3 peers voted for it"),
        ("INFO", "peer n0: leader of term 0 -> candidate of term 0: no majority has responded for 6000 ms"),
        ("INFO", "peer n0: candidate of term 0 -> candidate of term 1: n2 asks for votes in it"),
        (
            "INFO",
            "peer n0: vote in term 1: None -> n2: asked first, and its ledger is as new as this peer's",
        ),
        ("INFO", "peer n0: candidate of term 1 -> follower of term 1: n1 leads it"),
        ("DEBUG", "peer n0: committed index -1 -> 0, as follower of term 1, leader: n1"),
        ("DEBUG", "peer n0: committed index 0 -> 1, as follower of term 1, leader: n1"),
        ("INFO", "peer n0: follower of term 1 -> candidate of term 1: no heartbeat of n1 for 6000 ms"),
    ]


def test_a_state_that_stays_the_same_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each push and heartbeat would write a line."""
    bench = Bench()
    heartbeat = HeartBeatRequest(leader_id="n1", term=1)
    bench.ask(heartbeat)
    caplog.clear()
    caplog.set_level(logging.DEBUG, "rocketpy.broker.dledger")
    bench.ask(heartbeat)
    bench.ask(PushEntryRequest(commit_index=-1, leader_id="n1", term=1, type=PushType.COMMIT))
    assert caplog.messages == []
