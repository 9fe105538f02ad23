"""What the pages show, run as a reader would run it."""
