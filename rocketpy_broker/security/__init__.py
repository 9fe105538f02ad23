"""Access control: accounts, rights, and the checks of requests."""
