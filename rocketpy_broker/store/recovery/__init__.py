"""Recovery: finds the end of the commit log and rebuilds queues and index."""
