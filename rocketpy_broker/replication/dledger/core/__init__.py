"""The Raft core of a DLedger peer, without I/O: events and `now_ms` in, a `Ready` out.

Without I/O, one thread can run a whole group, with faults that a seed chooses: power losses, lost messages,
clocks that differ. A failure is repeated by its seed (tests/sim).
"""
