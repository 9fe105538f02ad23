"""Counters of a broker and the runtime information that administrators read."""
