"""Mutation sampling: changes one place of a package at a time, and checks whether its tests fail."""
