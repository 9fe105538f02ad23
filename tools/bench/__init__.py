"""Benchmarks of rocketpy and the real RocketMQ, with the same clients in alternating rounds."""
