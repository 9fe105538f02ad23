"""State besides messages: topics, groups, offsets, clients, locks and held pulls."""
