"""State besides messages: topics, groups, offsets, clients and locks."""
