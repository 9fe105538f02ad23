"""Metrics, probes and traces of a broker."""
