"""Generates the events that the demo sends by default: one JSON object per line.

    python -m examples.generate_events [FILE] [--events 10000] [--seed 2026]

The same seed gives the same bytes. The lines are similar to those of a shop's systems: small sensor readings
and page views, orders with nested items, chat in many scripts. A few stack traces and product pages are
longer than 4 KiB, so the producer compresses them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

DEFAULT_FILE = Path(__file__).parent.parent / "build" / "demo" / "events.jsonl"
DEFAULT_EVENTS = 10_000
DEFAULT_SEED = 2026

Event = dict[str, Any]

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
PEOPLE = (
    "Ada Lovelace",
    "Grace O'Hopper",
    "李小龙",
    "Zoë Kravitz",
    "Søren Kierkegaard",
    "محمد علي",
    "सचिन तेंदुलकर",
)
CITIES = ("Reykjavík", "São Paulo", "東京", "Kyiv", "القاهرة", "Łódź", "Zürich", "Nairobi")
PRODUCTS = (
    "Espresso beans 1 kg",
    "Café crème ☕",
    "抹茶 30 g",
    "Moka pot",
    "Grinder «Königin»",
    "Filters ×100",
)
PHRASES = (
    "where is my parcel?",
    "thank you 🙏",
    "Größe passt nicht",
    "配送はいつですか",
    "c'est cassé 😕",
    "всё отлично!",
    "¿puedo cambiar la dirección?",
    "שלום",
    "👩\u200d🚀🚀",
)
WORDS = (
    "dark",
    "roast",
    "with",
    "notes",
    "of",
    "cherry",
    "cocoa",
    "and",
    "citrus",
    "grown",
    "high",
    "washed",
    "slowly",
)


def sensor_reading(draw: Random, number: int) -> Event:
    """The smallest event."""
    celsius = round(draw.gauss(21, 3), 1)
    return {"type": "sensor", "id": f"s{number}", "celsius": celsius, "ok": draw.random() < 0.99}


def page_view(draw: Random, number: int) -> Event:
    """A visit to one page."""
    page = draw.choice(("beans", "pots", "sale"))
    return {
        "type": "page_view",
        "id": f"v{number}",
        "user_id": f"u{draw.randrange(4000)}",
        "url": f"https://shop.example/{page}/{draw.randrange(900)}?from=mail",
        "agent": f"Mozilla/5.0 (X11; Linux x86_64; rv:{draw.randrange(90, 140)}.0) Gecko/20100101",
        "ms": draw.randrange(3, 900),
        "referrer": draw.choice((None, "https://search.example/")),
    }


def payment(draw: Random, number: int) -> Event:
    """A card payment for an order."""
    return {
        "type": draw.choice(("payment_authorized", "payment_captured", "payment_declined")),
        "id": f"p{number}",
        "order_id": f"o{draw.randrange(1, number + 2)}",
        "amount": f"{draw.randrange(100, 99_999) / 100:.2f}",
        "currency": draw.choice(("EUR", "JPY", "BRL", "KES")),
        "card": {"brand": "visa", "last4": f"{draw.randrange(10_000):04}"},
    }


def order(draw: Random, number: int) -> Event:
    """An order with its items: a nested event."""
    return {
        "type": draw.choice(("order_placed", "order_paid", "order_shipped")),
        "id": f"o{number}",
        "time": START_MS + number * 250,
        "customer": {"name": draw.choice(PEOPLE), "address": {"city": draw.choice(CITIES), "zip": None}},
        "items": [
            {
                "sku": f"sku-{draw.randrange(500)}",
                "name": draw.choice(PRODUCTS),
                "count": draw.randrange(1, 5),
            }
            for _ in range(draw.randrange(1, 9))
        ],
        "total": draw.randrange(199, 99_000) / 100,
    }


def chat(draw: Random, number: int) -> Event:
    """A customer's chat message, in one or several scripts."""
    text = " ".join(draw.choices(PHRASES, k=draw.randrange(1, 12)))
    return {"type": "chat", "id": f"c{number}", "user": draw.choice(PEOPLE), "text": text}


def crash(draw: Random, number: int) -> Event:
    """A log entry with a stack trace: long, and easy to compress."""
    trace = [
        f'  File "/srv/shop/{draw.choice(WORDS)}.py", line {draw.randrange(1, 900)}, in {draw.choice(WORDS)}'
        for _ in range(draw.randrange(60, 160))
    ]
    return {
        "type": "error",
        "id": f"e{number}",
        "host": f"web-{draw.randrange(8)}",
        "trace": "\n".join(trace),
    }


def product_page(draw: Random, number: int) -> Event:
    """A product with its description: the largest event."""
    return {
        "type": "product_updated",
        "id": f"r{number}",
        "sku": f"sku-{draw.randrange(500)}",
        "name": draw.choice(PRODUCTS),
        "description": " ".join(draw.choices(WORDS, k=draw.randrange(800, 4000))),
        "attributes": {f"attribute {n}": {"value": draw.random(), "unit": "g"} for n in range(20)},
        "photo": f"data:image/png;base64,{draw.randbytes(1500).hex()}",
    }


Maker = Callable[[Random, int], Event]
MAKERS: dict[Maker, int] = {
    sensor_reading: 30,
    page_view: 30,
    payment: 14,
    order: 14,
    chat: 8,
    crash: 2,
    product_page: 2,
}
"""Each kind of event and its share in percent."""


def events(count: int = DEFAULT_EVENTS, seed: int = DEFAULT_SEED) -> Iterator[Event]:
    """Return `count` events, always the same ones for a seed."""
    draw = Random(seed)
    makers = draw.choices(list(MAKERS), list(MAKERS.values()), k=count)
    return (make(draw, number) for number, make in enumerate(makers, start=1))


def write_events(path: Path, count: int = DEFAULT_EVENTS, seed: int = DEFAULT_SEED) -> int:
    """Write `count` lines to `path`, and create its folder; return the size in bytes. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(
            json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"
            for event in events(count, seed)
        )
    unfinished.replace(path)  # so that an interrupted run leaves no incomplete file
    return path.stat().st_size


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.generate_events", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE, help="default: %(default)s")
    parser.add_argument(
        "--events", type=int, default=DEFAULT_EVENTS, help="number of events (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        print(f"generate_events: writing {arguments.events:,} events", file=sys.stderr, flush=True)
        size = write_events(arguments.file, arguments.events, arguments.seed)
    except KeyboardInterrupt:
        print("generate_events: interrupted", file=sys.stderr)
        return 130
    print(f"{arguments.events:,} events, {size:,} bytes: {arguments.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
