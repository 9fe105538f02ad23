"""Consume queues: dispatch from the commit log, reads, and search by time."""
