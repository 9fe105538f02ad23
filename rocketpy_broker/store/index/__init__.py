"""The key index: which messages have a key or a unique id."""
