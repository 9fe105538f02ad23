"""Handlers of the requests of message-level sharing (POP)."""
