"""Crashes of the store at every call that changes the disk: `python -m tests.crash`.

`disk` keeps what was written and what was flushed apart, and makes of any moment the disk that a crash would
leave. `workloads` use a store through `writer`, which remembers what was sent, written and flushed. `sweep`
crashes them everywhere, `verify` says what must be true of a recovered store, `damage` breaks finished ones,
`faults` lets calls fail. `planted` takes one of the store's rules away at a time, to see that the sweep
notices. `kill` does it to a real broker process.
"""
