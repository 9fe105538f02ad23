"""Handlers of sends, send-backs, replies and ends of transactions, and what delays their responses."""
