"""Timers: messages with any due time, in the files of RocketMQ 5.x."""
