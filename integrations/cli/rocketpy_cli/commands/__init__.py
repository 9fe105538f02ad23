"""Commands of one module each: they send and read messages, or show and change topics, groups and servers."""
