"""Commands that send messages: ``send``, ``dlq`` (which re-sends dead letters) and ``bench``."""
