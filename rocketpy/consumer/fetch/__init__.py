"""Fetches messages: subscriptions, pull requests, and the queue of messages in progress."""
