"""Membership of a consumer group: rebalance, offsets, and requests that brokers send to a client."""
