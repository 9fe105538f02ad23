"""Settings of a connection: its URL, kombu's `ssl` and `transport_options`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from rocketpy.config import ClientConfig, Credentials, check_number
from rocketpy.consumer.config import INVISIBLE_MAX_MS
from rocketpy.errors import ConfigInvalid
from rocketpy.transport import TlsFiles
from rocketpy_kombu.names import valid_name

_URL: Final = re.compile(
    r"(?:rocketmq:)?//(?:(?P<account>[^@/?]*)@)?(?P<hosts>[^@/?]*)(?:/(?P<namespace>[^@?]*))?"
)
_EMBEDDED: Final = re.compile(r"embedded:(?://)?(?P<rest>.*)")
_TLS_FILES: Final = {"ca_certs": "trust_cert_path", "certfile": "cert_path", "keyfile": "key_path"}
"""Names in kombu's `ssl`, which are those of Python's ssl module -> ours."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one connection uses."""

    client: ClientConfig
    """How to connect."""
    visibility_timeout_s: float = 60.0
    """How long after the death of a worker its messages are delivered again. A live worker extends it."""
    wait_time_s: float = 20.0
    """How long one request waits for messages at a broker."""
    group: str = "kombu"
    """First part of the names of consumer groups; the topic follows."""
    prefix: str = ""
    """First part of the names of topics."""
    topic_queues: int = 4
    """Number of queues on each broker of a topic that is created."""

    def shares_clients(self, other: Settings) -> bool:
        """Return whether connections with these settings can share their clients."""
        return (self.client, self.group, self.prefix) == (other.client, other.group, other.prefix)

    def topic(self, queue: str) -> str:
        """Return the topic of a queue."""
        return self.prefix + valid_name(queue)

    def group_of(self, queue: str) -> str:
        """Return the consumer group of a queue."""
        return f"{self.group}-{self.topic(queue)}"


def read_settings(
    url: str | None, ssl: bool | Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Settings:
    """Return the settings of a connection.

    Args:
        url: ``rocketmq://…``, or ``embedded:…`` for ``rocketmq+embedded://…``, as kombu passes it.
        ssl: kombu's argument; true, or a dict with ca_certs, certfile and keyfile, for TLS.
        options: kombu's `transport_options`. Names that only other transports know are ignored.

    Raises:
        ConfigInvalid: One of them is invalid.
    """
    url = url or ""
    numbers = {
        "visibility_timeout_s": options.get("visibility_timeout", 60.0),
        "wait_time_s": options.get("wait_time_seconds", 20.0),
        "topic_queues": options.get("topic_queues", 4),
    }
    check_number("visibility_timeout seconds", numbers["visibility_timeout_s"], 1, INVISIBLE_MAX_MS // 1000)
    check_number("wait_time_seconds", numbers["wait_time_s"], 0, INVISIBLE_MAX_MS // 1000)
    check_number("topic_queues", numbers["topic_queues"], 1)
    return Settings(
        client=_client_config(url, ssl, options),
        group=_text(options, "group", "kombu"),
        prefix=_text(options, "queue_name_prefix", ""),
        **numbers,
    )


def display_url(url: str, *, mask: str | None) -> str:
    """Return a URL for logs, with `mask` in place of the secret key; None shows it."""
    if mask is None:
        return url
    # To the last @: a secret key that is not quoted may have any character.
    return re.sub(r"(//[^:]*:).*@", rf"\g<1>{mask}@", url, flags=re.DOTALL)


def _client_config(
    url: str, ssl: bool | Mapping[str, Any] | None, options: Mapping[str, Any]
) -> ClientConfig:
    if embedded := _EMBEDDED.fullmatch(url):
        rest = embedded["rest"]
        return ClientConfig(namesrv=f"embedded://{rest}" if rest.startswith("/") else f"embedded:{rest}")
    found = _URL.fullmatch(url.partition("?")[0]) if url else _URL.fullmatch("//")
    if found is None or "?" in url:
        raise ConfigInvalid(
            f"{display_url(url, mask='**')!r} is no address of RocketMQ; write "
            "rocketmq://access_key:secret_key@host:9876,other:9876/namespace, of which only rocketmq:// "
            "is necessary; percent-encode @ / ? and : of the keys"
        )
    named = [host for host in found["hosts"].split(",") if host]
    hosts = [host if ":" in host.rpartition("]")[2] else f"{host}:9876" for host in named]
    tls: TlsFiles | None = None
    if ssl:
        hosts = [f"tls://{host}" for host in hosts]
        tls = _tls_files(ssl) if isinstance(ssl, Mapping) else None
    credentials = None
    if found["account"]:
        access_key, _, secret_key = found["account"].partition(":")
        credentials = Credentials(access_key=unquote(access_key), secret_key=unquote(secret_key))
    return ClientConfig(
        namesrv=";".join(hosts),
        namespace=_text(options, "namespace", unquote(found["namespace"] or "")),
        credentials=credentials,
        ssl=tls,
    )


def _tls_files(ssl: Mapping[str, Any]) -> TlsFiles | None:
    unknown = sorted(set(ssl) - set(_TLS_FILES))
    if unknown:
        raise ConfigInvalid(f"ssl has {', '.join(unknown)}; it may have {', '.join(_TLS_FILES)}")
    given = {_TLS_FILES[name]: path for name, path in ssl.items() if path is not None}
    return TlsFiles(**given) if given else None


def _text(options: Mapping[str, Any], name: str, default: str) -> str:
    value = options.get(name, default)
    if not isinstance(value, str):
        raise ConfigInvalid(f"transport option {name} is {value!r}; it must be a string")
    return value
