"""Master-slave replication: the commit log of a master, copied byte for byte.

`wire`, `epochs`, `master`, `slave`, `connected_slaves`: pure; events and `now_ms` in, effects out.
`server`, `client`: what drives them over sockets. Spoken as by RocketMQ 4.6.0's HAService, both ways.
"""
