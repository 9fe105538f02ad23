"""The interop cases. The first docstring line of each case states the failure for a user."""
