"""Crashes of the store at every call that changes the disk: `python -m tests.crash`.

`disk` records written and flushed data separately, and computes the disk that a crash at any moment leaves.
`workloads` use a store through `writer`, which records what was sent, written and flushed. `sweep` crashes
them at every call, and `verify` checks the recovered stores. `damage` damages stopped stores, `faults` lets
calls fail. `planted` removes one of the store's rules at a time, to check that the sweep detects it. `kill`
kills a real broker process. `timers` kills masters while timed messages wait.
"""
