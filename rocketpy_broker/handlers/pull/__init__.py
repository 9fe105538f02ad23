"""Handlers of pulls, queries and offsets, and the pulls that wait for messages."""
