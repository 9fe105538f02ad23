"""The interop cases, one file a direction; the first line of each case states the failure for a user."""
