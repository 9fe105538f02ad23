"""The Raft core of a DLedger peer, without I/O: events and `now_ms` in, a `Ready` out."""
