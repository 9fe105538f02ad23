"""What a broker keeps besides messages: topics, clients, its place in the cluster."""
