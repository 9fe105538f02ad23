"""Mutation sampling: changes one place of a package at a time and looks whether its tests notice."""
