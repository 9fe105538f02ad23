"""The rows of docs/reference/mqproducer.md as cases, which run against our servers and against RocketMQ's."""
