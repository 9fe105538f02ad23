"""Metrics of a broker: what is measured, and an endpoint for Prometheus."""
