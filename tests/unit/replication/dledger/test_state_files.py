"""Vote and checkpoint files that are damaged."""

from pathlib import Path

import pytest

from rocketpy_broker.replication.dledger.core.raft_state import LedgerCheckpoint, TermState
from rocketpy_broker.replication.dledger.storage.state_files import (
    StateFiles,
    decode_checkpoint,
    decode_term,
    encode_checkpoint,
    encode_term,
    is_sealed,
    seal,
)
from rocketpy_broker.store.files.disk import OsDisk

VOTE = seal(encode_term(TermState(12, "n1")))


def test_a_sealed_file_is_read_like_javas() -> None:
    """Without this a ledger of ours could not be opened again, or a Java one not at all."""
    assert decode_term(VOTE) == decode_term(encode_term(TermState(12, "n1"))) == (12, "n1")
    assert VOTE.splitlines()[-1].startswith(b"# "), "Java must skip it"
    point = LedgerCheckpoint(7, 9)
    assert decode_checkpoint(seal(encode_checkpoint(point))) == point


def test_what_java_saved_is_ours_once_it_is_loaded(tmp_path: Path) -> None:
    """Marks of the ledger would be ignored at every start as another broker's, and each entry be read."""
    term, point = TermState(12, "n1"), LedgerCheckpoint(7, 9)
    (tmp_path / "currterm").write_bytes(encode_term(term))
    (tmp_path / "checkpoint").write_bytes(encode_checkpoint(point))
    for _ in range(2):
        files = StateFiles(OsDisk(), tmp_path)
        assert files.load_term(has_entries=True) == term
        assert files.load_checkpoint() == point
        assert is_sealed((tmp_path / "currterm").read_bytes())
        assert is_sealed((tmp_path / "checkpoint").read_bytes())


@pytest.mark.parametrize("at", range(VOTE.index(b"#")))
def test_a_flipped_bit_in_a_sealed_vote_is_seen(at: int) -> None:
    """Without this a peer could come back with another vote, or an older term (#5905)."""
    damaged = bytearray(VOTE)
    damaged[at] ^= 1
    with pytest.raises(ValueError, match="currterm"):
        decode_term(bytes(damaged))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"currTerm=1",
        b"voteLeader=n1\n",
        b"voteLeader=n1\ncurrTerm=x\n",
        b"\xff\xfe\n",
        b"currTerm=\\u1\n",
    ],
)
def test_a_vote_that_cannot_be_read_is_no_vote_for_nobody(data: bytes) -> None:
    """Without this a damaged file would let a peer vote twice in one term."""
    with pytest.raises(ValueError, match=r"currterm|invalid|decode"):
        decode_term(data)
