"""Message-level sharing (POP): check points, acknowledgements, and the revive of messages."""
