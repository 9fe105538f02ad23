"""RocketMQ's own integration tests on rocketpy's servers; see `__main__`."""
