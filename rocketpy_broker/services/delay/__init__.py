"""Delayed messages: their queues and the scheduler that delivers them."""
