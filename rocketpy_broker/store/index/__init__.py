"""The key index: finds messages by key or unique id."""
