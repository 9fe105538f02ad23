"""Handlers of requests about clients: heartbeats, groups, locks, and requests passed on to clients."""
