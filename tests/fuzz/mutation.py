"""Makes inputs that are almost right: recorded bytes, changed in a few places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

_INTEGERS = (
    *(number.to_bytes(size, "big") for size in (1, 2, 4, 8) for number in (0, 1, 1 << (size * 8 - 1))),
    *((1 << (size * 8 - sign)).__sub__(1).to_bytes(size, "big") for size in (1, 2, 4, 8) for sign in (0, 1)),
    (16 << 20).to_bytes(4, "big"),
    (-2).to_bytes(4, "big", signed=True),
)
"""Numbers that lengths and offsets go wrong at."""

_PURE_NOISE = 0.03
_MAX_NOISE_BYTES = 200


def rng_for(seed: int, target: str, index: int) -> Random:
    """The random numbers of one input, the same in every run and on every machine."""
    return Random(f"{seed}:{target}:{index}")


class Mutator:
    """Draws one of `seeds` and changes it in one to four places; now and then pure noise instead.

    tokens: pieces that mean something to the reader, such as braces to one of JSON.
    """

    def __init__(self, seeds: Sequence[bytes], tokens: Sequence[bytes] = ()) -> None:
        self.seeds = seeds
        self.tokens = (*tokens, *_INTEGERS)

    def make(self, rng: Random) -> bytes:
        """One input."""
        if rng.random() < _PURE_NOISE:
            return rng.randbytes(rng.randrange(_MAX_NOISE_BYTES))
        return self.mutate(rng, rng.choice(self.seeds))

    def mutate(self, rng: Random, data: bytes) -> bytes:
        """`data` with one to four changes."""
        for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 4))):
            data = rng.choice(_CHANGES)(self, rng, data)
        return data

    # -- changes ------------------------------------------------------------------------------

    def _flip_bit(self, rng: Random, data: bytes) -> bytes:
        at = _place(rng, data)
        return data[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]

    def _set_byte(self, rng: Random, data: bytes) -> bytes:
        at = _place(rng, data)
        return data[:at] + rng.randbytes(1) + data[at + 1 :]

    def _overwrite(self, rng: Random, data: bytes) -> bytes:
        at, token = _place(rng, data), rng.choice(self.tokens)
        return data[:at] + token + data[at + len(token) :]

    def _insert(self, rng: Random, data: bytes) -> bytes:
        at = _place(rng, data)
        return data[:at] + rng.choice(self.tokens) + data[at:]

    def _repeat(self, rng: Random, data: bytes) -> bytes:
        """Many times one token, or one piece of the data: depth, and length."""
        at = _place(rng, data)
        piece = rng.choice((rng.choice(self.tokens), data[at : at + rng.randrange(1, 40)]))
        return data[:at] + piece * rng.choice((2, 3, 40, 300)) + data[at:]

    def _cut(self, rng: Random, data: bytes) -> bytes:
        return data[: _place(rng, data)]

    def _remove(self, rng: Random, data: bytes) -> bytes:
        at = _place(rng, data)
        return data[:at] + data[at + rng.randrange(1, 20) :]

    def _add_noise(self, rng: Random, data: bytes) -> bytes:
        at = _place(rng, data)
        return data[:at] + rng.randbytes(rng.randrange(1, 20)) + data[at:]

    def _splice(self, rng: Random, data: bytes) -> bytes:
        """The beginning of one and the end of another."""
        other = rng.choice(self.seeds)
        return data[: _place(rng, data)] + other[_place(rng, other) :]


_CHANGES: tuple[Callable[[Mutator, Random, bytes], bytes], ...] = (
    Mutator._flip_bit,
    Mutator._flip_bit,
    Mutator._set_byte,
    Mutator._overwrite,
    Mutator._overwrite,
    Mutator._insert,
    Mutator._repeat,
    Mutator._cut,
    Mutator._remove,
    Mutator._add_noise,
    Mutator._splice,
)


def _place(rng: Random, data: bytes) -> int:
    """Anywhere in `data`, its end included; in half of all cases within its first 32 bytes."""
    reach = min(len(data), 32) if rng.random() < 0.5 else len(data)
    return int(rng.random() * (reach + 1))
