"""Calls handlers with pulled messages, concurrently or in order, and sends failed messages back."""
