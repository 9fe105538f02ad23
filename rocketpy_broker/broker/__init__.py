"""The broker: its services, its request router, and its replication."""
