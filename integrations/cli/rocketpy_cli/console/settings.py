"""ConsoleSettings: the address and the permissions of one console."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Final

from rocketpy.config import ClientConfig
from rocketpy.errors import ConfigInvalid

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_TOKEN_LENGTH_MIN: Final = 16


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """The settings of one console.

    Raises:
        ConfigInvalid: The address is not allowed, or the token is too short.
    """

    client: ClientConfig
    """The configuration of clients for the cluster."""
    cluster: str
    """The text that names the cluster on pages: its name servers and the profile."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8088
    """The port; 0 takes a free one."""
    allow_changes: bool = False
    """Whether users may send messages, resend dead letters, reset offsets, and hide brokers from
    producers."""
    allow_remote: bool = False
    """Whether `host` may be an address that other machines can reach."""
    host_names: tuple[str, ...] = ()
    """Names by which browsers may reach the console, besides those of the loopback interface."""
    token: str = field(repr=False)
    """The secret in the login link; at least 16 characters."""
    interval_s: float = 10.0
    """Seconds between two samples of rates and lag."""

    def __post_init__(self) -> None:
        if len(self.token) < _TOKEN_LENGTH_MIN:
            raise ConfigInvalid(
                f"the console's token has {len(self.token)} characters; "
                f"it needs at least {_TOKEN_LENGTH_MIN}, so that it cannot be guessed"
            )
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            raise ConfigInvalid(
                f"the console cannot listen on {self.host!r}: give an IP address, such as 127.0.0.1"
            ) from None
        if address.is_loopback:
            return
        if not self.allow_remote:
            raise ConfigInvalid(
                f"the console would listen on {self.host}, where other machines can reach it. It has no TLS, "
                "so anyone on the network path could read its token and all messages. Listen on 127.0.0.1 "
                "behind a proxy with TLS, or give --allow-remote"
            )
        if address.is_unspecified and not self.host_names:
            raise ConfigInvalid(
                f"the console would listen on every address ({self.host}): set the host names that "
                "browsers use for it with --host-name"
            )

    def is_own_host(self, header: str) -> bool:
        """Return whether the Host header of a request names this console.

        Another name means a DNS rebinding attack: the host name of a web page was pointed at this address.
        """
        name, colon, port = header.rpartition(":")
        if not colon or not port.isdecimal():  # no port, or the last part of an IPv6 address
            name = header
        own = f"[{self.host}]" if ":" in self.host else self.host
        known = {own, *_LOOPBACK_NAMES, *self.host_names}
        return name.lower() in {host.lower() for host in known}
