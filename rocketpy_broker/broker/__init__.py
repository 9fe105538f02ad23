"""The broker: its services, its request router, and its role in a replica group."""
