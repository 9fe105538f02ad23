"""Runs this version and an earlier one together, as processes: `make compatibility`."""
