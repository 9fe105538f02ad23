"""Settings of brokers and name servers: their model, the keys of broker.conf, and changes while running."""
