"""The pytest plugin, in test runs with real servers."""
