"""The guides to frameworks and to servers that fork: their code runs as a reader would run it."""
