"""Checks the files of a store that no broker has open."""
