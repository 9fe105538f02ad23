"""Encoders and decoders of RocketMQ's wire and store formats, without I/O."""
