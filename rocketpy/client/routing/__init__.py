"""Routes: which queues of which brokers serve a topic, and which of them is next."""
