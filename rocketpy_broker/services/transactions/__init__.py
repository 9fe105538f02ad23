"""Half messages, their ends, and the checks that ask producers about them."""
