"""Transports: connections that carry bytes. All connections of RocketMQ's protocols are opened here."""

from rocketpy.transport.base import Address, ChannelOptions, Listener, Transport
from rocketpy.transport.channel import Channel, ClientOnlyEndpoint, Endpoint
from rocketpy.transport.connect import (
    Server,
    check_scheme,
    connect,
    connect_raw,
    listen_raw,
    local_address,
    register_transport,
    serve,
)
from rocketpy.transport.memory_budget import MemoryBudget
from rocketpy.transport.stream import StreamProtocol
from rocketpy.transport.tls import Tls, TlsFiles, certificate_names, ending_hint

AskingEnd = ClientOnlyEndpoint
"""The name of `ClientOnlyEndpoint` in version 0.1."""

__all__ = [
    "Address",
    "AskingEnd",
    "Channel",
    "ChannelOptions",
    "ClientOnlyEndpoint",
    "Endpoint",
    "Listener",
    "MemoryBudget",
    "Server",
    "StreamProtocol",
    "Tls",
    "TlsFiles",
    "Transport",
    "certificate_names",
    "check_scheme",
    "connect",
    "connect_raw",
    "ending_hint",
    "listen_raw",
    "local_address",
    "register_transport",
    "serve",
]
