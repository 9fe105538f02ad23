"""Bytes and values of RocketMQ's wire and store formats: no sockets, no clocks, no files."""
