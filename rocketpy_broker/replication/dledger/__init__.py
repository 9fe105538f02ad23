"""DLedger: a group of brokers that elects its leader. Formats, pure cores and files; nothing drives them yet.

`entry`, `state_files`: what lies on disk. `codes`, `wire`: what peers say to each other. All of it as in
DLedger 0.1, which RocketMQ 4.6.0 ships. `node`: one peer, of `member`, `election`, `ledger_view`, `following`
and `leading`; events go in, what is to be written and sent comes out. `ledger_files`: where it is written.
"""
