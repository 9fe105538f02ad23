"""Handlers of administration requests: topics, accounts, settings, progress of consumers."""
