"""Attacks servers with hostile connections while good clients work: `make attack`."""
