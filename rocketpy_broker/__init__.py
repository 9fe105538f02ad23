"""Name server, broker and store that speak Apache RocketMQ 4.6's own formats."""
