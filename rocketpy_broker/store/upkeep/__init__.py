"""Periodic work: flushes, retention, and removal of expired files."""
