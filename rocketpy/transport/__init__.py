"""Transports: how bytes reach a peer. The only place that touches sockets."""

from rocketpy.transport.asking import AskingEnd
from rocketpy.transport.base import Address, ChannelOptions, Listener, Transport
from rocketpy.transport.channel import Channel, Endpoint
from rocketpy.transport.opening import (
    Server,
    check_scheme,
    connect,
    connect_raw,
    listen_raw,
    local_address,
    register_transport,
    serve,
)
from rocketpy.transport.stream import StreamProtocol

__all__ = [
    "Address",
    "AskingEnd",
    "Channel",
    "ChannelOptions",
    "Endpoint",
    "Listener",
    "Server",
    "StreamProtocol",
    "Transport",
    "check_scheme",
    "connect",
    "connect_raw",
    "listen_raw",
    "local_address",
    "register_transport",
    "serve",
]
