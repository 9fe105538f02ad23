"""Routes: the queues of a topic on its brokers, and the choice of a queue for each message."""
