"""Formats of messages: stored records, batches, properties, ids, compression and trace reports."""
