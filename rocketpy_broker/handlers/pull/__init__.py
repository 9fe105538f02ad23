"""Handlers of pulls, queries and offsets."""
