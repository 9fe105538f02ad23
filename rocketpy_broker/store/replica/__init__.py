"""Reads and writes copies of a commit log, for slaves and peers."""
