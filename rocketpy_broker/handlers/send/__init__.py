"""Handlers of sends, send-backs, replies and ends of transactions, and their parked responses."""
