"""Vote and checkpoint files that are damaged."""

import pytest

from rocketpy_broker.dledger.state_files import (
    LedgerCheckpoint,
    TermState,
    decode_checkpoint,
    decode_term,
    encode_checkpoint,
    encode_term,
    seal,
)

VOTE = seal(encode_term(TermState(12, "n1")))


def test_a_sealed_file_is_read_like_javas() -> None:
    """Without this a ledger of ours could not be opened again, or a Java one not at all."""
    assert decode_term(VOTE) == decode_term(encode_term(TermState(12, "n1"))) == (12, "n1")
    assert VOTE.splitlines()[-1].startswith(b"# "), "Java must skip it"
    point = LedgerCheckpoint(7, 9)
    assert decode_checkpoint(seal(encode_checkpoint(point))) == point


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
