"""Commands that send messages: of a user, of dead letters, of a benchmark."""
