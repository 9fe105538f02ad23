"""Runs background work of clients and servers; any layer may use it."""
