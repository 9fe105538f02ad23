"""Whose bytes a log holds: which master wrote it from which offset on.

A master begins an epoch when it is promoted, and when it starts after a crash: either may have cut off
bytes that a slave still has. Two logs are equal up to where their lists of epochs part; a slave cuts what
it has behind that, and never follows a master whose epochs are older than those it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec


class Epoch(msgspec.Struct, array_like=True, frozen=True):
    """One master's turn. number: rises by one. start: offset of its first byte. id: tells two masters
    apart that were both promoted behind the same epoch.
    """

    number: int
    start: int
    id: str


class EpochState(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker keeps. seen: the newest number of any master it followed or was. own: id of the newest
    epoch if it began here and nothing was copied since.
    """

    epochs: tuple[Epoch, ...] = ()
    seen: int = 0
    own: str = ""


NO_EPOCHS: Final = EpochState()
_KEPT: Final = 1000


def begin_epoch(state: EpochState, end: int, identity: str, now_ms: int) -> EpochState:
    """Return the state of a master whose log ends at `end` and which writes on from there.

    Its number is a time because counting is not enough: a master that was promoted, wrote, and was lost
    before anybody followed it would share its number with the next one, and its bytes could outrank
    acknowledged ones when it comes back. A master that starts again after a crash does count (`now_ms` 0):
    it must not outrank a slave that was promoted while it was away.
    """
    number = max(state.seen + 1, state.epochs[-1].number + 1 if state.epochs else 1, now_ms)
    epochs = (*epochs_until(state.epochs, end), Epoch(number, end, identity))
    return EpochState(epochs=epochs[-_KEPT:], seen=number, own=identity)


def epochs_until(epochs: Sequence[Epoch], end: int) -> tuple[Epoch, ...]:
    """Return those that began in a log which ends at `end`."""
    return tuple(epoch for epoch in epochs if epoch.start <= end)


def common_end(ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int) -> int | None:
    """Return how far two logs are equal; None when their epochs do not tell.

    Each list is in order; the log belongs to an epoch from its start to that of the next one. A list may
    name epochs that begin behind its log's end, of which nothing has arrived.
    """
    known = {epoch: index for index, epoch in enumerate(theirs)}
    for index in range(len(ours) - 1, -1, -1):
        other = known.get(ours[index])
        if other is not None:
            our_stop = ours[index + 1].start if index + 1 < len(ours) else our_end
            their_stop = theirs[other + 1].start if other + 1 < len(theirs) else their_end
            return min(our_stop, our_end, their_stop, their_end)
    return None


def rank(state: EpochState, end: int) -> tuple[int, int]:
    """What decides which of several slaves to promote: the highest has all that was acknowledged.

    The epoch goes before the length: a slave that missed the last promotion may have more bytes, none of
    which count.
    """
    known = epochs_until(state.epochs, end)
    return known[-1].number if known else 0, end
