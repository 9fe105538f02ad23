"""The home of the OpenTelemetry listener on ``rocketpy.hooks``; nothing is built here yet."""
