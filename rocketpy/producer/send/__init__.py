"""The send path: dispatcher, accumulator, encoder, sender, and the response."""
