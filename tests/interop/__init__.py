"""Interop cases: real RocketMQ servers and clients (from Maven Central) with rocketpy's, over loopback."""
