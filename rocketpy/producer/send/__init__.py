"""The send path: submitter, accumulator and encoder, sender, sinks, and the response."""
