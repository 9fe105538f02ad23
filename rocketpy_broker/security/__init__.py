"""Access control: accounts, permissions, and the checks of requests."""
