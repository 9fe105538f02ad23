"""`python -m tools.bench.security`: the cost of access control and TLS in brokers of both makes.

rocketpy's client drives brokers without both, with access control, and with TLS, in alternating rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization

from tests.interop.cluster import stopping
from tests.interop.java_peer import JavaPeer, make_home
from tests.interop.processes import (
    SERVER_JVM,
    BrokerProcess,
    JavaBroker,
    JavaNameServer,
    NameServerProcess,
    OurBroker,
    OurNameServer,
)
from tools.bench.comparison import compare, in_turn, note, numbers, options_of, words
from tools.bench.loads import LoadProcess
from tools.bench.results import Key, Results, Sample
from tools.bench.servers import BROKER_JVM, CONF, JAVA, Server

OURS = "ours"
KEYS = {"access_key": "benchmark", "secret_key": "bench-secret"}
ACCOUNTS = "accounts:\n- accessKey: benchmark\n  secretKey: bench-secret\n  admin: true\n"


@dataclass(frozen=True)
class Variant:
    """A broker with its name server, and how clients connect to it.

    against: the variant with which its cost is compared. signs: signature version of clients; 0: without
    access control.
    """

    name: str
    against: str
    signs: int = 0
    tls: bool = False


def main(arguments: list[str]) -> int:
    """Run, print and save. 0 when done, 3 where Java tools are missing."""
    options = parse(arguments)
    return compare(options, measure, name="security-", more=lambda results: costs(results, variants(options)))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = options_of("python -m tools.bench.security", __doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5, help="duration of one measurement of a load")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds of each load beforehand")
    parser.add_argument("--bytes", type=int, default=128, help="size of bodies")
    parser.add_argument("--concurrency", type=numbers, default=[64], help="sends in flight")
    parser.add_argument(
        "--batching", type=words, default=["off", "on"], help="whether the client batches them"
    )
    parser.add_argument("--only", type=words, default=[], help="names of variants to measure; default: all")
    return parser.parse_args(arguments)


def variants(options: argparse.Namespace) -> list[Variant]:
    """The variants, the plain ones first."""
    found = [
        Variant(JAVA, JAVA),
        Variant(OURS, OURS),
        Variant(f"{JAVA}, ACL", JAVA, signs=1),
        Variant(f"{OURS}, ACL", OURS, signs=1),
        Variant(f"{OURS}, ACL v2", OURS, signs=2),
        Variant(f"{JAVA}, TLS", JAVA, tls=True),
        Variant(f"{OURS}, TLS", OURS, tls=True),
    ]
    return [variant for variant in found if not options.only or variant.name in options.only]


def measure(peer: JavaPeer, run: Path, options: argparse.Namespace, results: Results) -> None:
    """All rounds of all loads into `results`."""
    chosen = variants(options)
    with ExitStack() as stack:
        running = [
            (variant, stack.enter_context(serving(peer, run / f"{number}", variant)))
            for number, variant in enumerate(chosen)
        ]
        client = stack.enter_context(LoadProcess.sdk(run, options.sdk_loops[0]))
        loads = [
            (f"batching {batching}, {count} in flight", {"concurrency": count, "gathers": batching == "on"})
            for count in options.concurrency
            for batching in options.batching
        ]
        for _, load in loads:
            for variant, server in running:
                drive(client, variant, server, options.warm_up, options.bytes, load)
        for number in range(options.rounds):
            for name, load in loads:
                for variant, server in in_turn(running, number):
                    sample = drive(client, variant, server, options.seconds, options.bytes, load)
                    note(results, number, Key(name, variant.name), sample)


def drive(
    client: LoadProcess, variant: Variant, server: Server, seconds: float, size: int, load: dict[str, Any]
) -> Sample:
    """One measurement of a load on one server."""
    credentials = {**KEYS, "signature_version": variant.signs} if variant.signs else None
    namesrv = f"{'tls://' * variant.tls}{server.namesrv_address}"
    return client.measure(
        server, namesrv=namesrv, credentials=credentials, seconds=seconds, bytes=size, **load
    )


@contextmanager
def serving(peer: JavaPeer, run: Path, variant: Variant) -> Iterator[Server]:
    """A variant's running name server and broker."""
    home = run / "broker"
    conf = {**CONF, **({"aclEnable": "true"} if variant.signs else {})}
    tls = certificate(run) if variant.tls else {}
    names: NameServerProcess
    make: Callable[[str], BrokerProcess]
    if variant.name.startswith(JAVA):
        accounts = make_home(home) / "conf/plain_acl.yml"
        seen = (f"-Dtls.config.file={properties_file(run / 'tls.properties', tls)}",) if tls else ()
        names = JavaNameServer(peer, run, jvm=(*SERVER_JVM, *seen))
        make = partial(JavaBroker, peer, run, name="broker", conf=conf, jvm=(*BROKER_JVM, *seen))
    else:
        home.mkdir(parents=True)
        accounts = home / "plain_acl.yml"
        names = OurNameServer(run, conf=tls)
        make = partial(OurBroker, run, name="broker", conf={**conf, **tls})
    if variant.signs:
        accounts.write_text(ACCOUNTS)
    with stopping([names.start()]), stopping([(broker := make(names.address)).start()]):
        yield Server(variant.name, names, broker)


def certificate(run: Path) -> dict[str, object]:
    """Settings of a server that accepts TLS and plain text, in which its broker registers."""
    run.mkdir(parents=True, exist_ok=True)
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(run / "cert.pem")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    # RocketMQ reads PKCS #8 only.
    form = serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (run / "key.pem").write_bytes(text)
    return {
        "tls.server.mode": "permissive",
        "tls.server.certPath": run / "cert.pem",
        "tls.server.keyPath": run / "key.pem",
    }


def properties_file(path: Path, values: Mapping[str, object]) -> Path:
    """Write settings as RocketMQ reads them."""
    settings = {"tls.test.mode.enable": "false", **values}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def costs(results: Results, measured: list[Variant]) -> str:
    """The median ratio of the broker's CPU time per message to that of the variant it is compared with."""
    lines = ["the broker's CPU a message, over that of another; quartiles of the rounds' ratios:"]
    for load in dict.fromkeys(key.load for key in results.samples):
        for variant in measured:
            mine = results.samples.get(Key(load, variant.name), [])
            base = results.samples.get(Key(load, variant.against), [])
            if variant.against == variant.name or len(mine) < 2 or len(mine) != len(base):
                continue
            ratios = [a.broker_cpu_us / b.broker_cpu_us for a, b in zip(mine, base, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            lines.append(
                f"  {load}: {variant.name} over {variant.against}: {middle:.3f} ({low:.3f}..{high:.3f})"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
