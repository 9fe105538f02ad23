"""Copies of a broker's log: master-slave replication (`ha`) and Raft groups (`dledger`)."""
