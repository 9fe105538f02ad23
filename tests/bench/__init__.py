"""Speed beside the real RocketMQ, both driven by the same clients in alternating rounds."""
