"""Message-level sharing (POP): a broker hides a delivered message from the rest of its group for a while."""
