"""One peer of a DLedger group without input or output: events and `now_ms` in, effects out."""
