"""RocketMQ's remoting protocol: frames, commands, their headers, and signatures."""
