"""Interop run: real RocketMQ servers and clients (from Maven Central) against ours, over loopback sockets."""
