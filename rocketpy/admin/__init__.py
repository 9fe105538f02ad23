"""Clients for administration: topics, offsets, messages and dead letters."""

from rocketpy.admin.admin_client import AdminClient, DeadLetters
from rocketpy.client.admin import QueryResult

__all__ = ["AdminClient", "DeadLetters", "QueryResult"]
