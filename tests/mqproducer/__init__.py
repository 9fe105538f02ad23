"""The rows of docs/reference/mqproducer.md as cases, which run with rocketpy's servers and RocketMQ's."""
