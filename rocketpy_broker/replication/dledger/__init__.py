"""DLedger: a group of brokers that elects its leader and replicates its log, as in RocketMQ 4.6.0.

`core`: the Raft core without I/O. `storage`: the files of a ledger. `peer`: drives both with sockets, a clock
and a disk thread. `ledger_log`, `ledger_store`: a message store on a ledger.
"""
