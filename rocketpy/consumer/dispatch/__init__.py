"""Calls handlers with the messages that were fetched, concurrently or in order, and sends failures back."""
