"""Master-slave replication: slaves copy the commit log of a master byte for byte.

`wire`, `epochs`, `master`, `slave`, `connected_slaves`, `sync_waiters`: pure; events and `now_ms` in, effects
out. `server`, `client`: drive them with sockets. Compatible with both ends of RocketMQ 4.6.0's HAService.
"""
