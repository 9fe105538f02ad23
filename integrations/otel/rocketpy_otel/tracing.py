"""What the makers of spans share: where spans go, and the contexts that travel in messages' properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, get_value
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Tracer

from rocketpy_otel.instruments import Instruments

_SUPPRESSED = (_SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")
"""Set in a context around exporters, so that what they send is not traced in its turn: the first by the SDK,
and different in each process; the second by older instrumentations."""


class Contexts:
    """Reads and writes the contexts in carriers: messages' properties."""

    def __init__(self, propagator: TextMapPropagator) -> None:
        self._propagator = propagator
        self._fields = frozenset(propagator.fields)

    def are_in(self, carrier: Mapping[str, str]) -> bool:
        """Whether a carrier says anything of a context."""
        return not self._fields.isdisjoint(carrier)

    def put(self, carrier: dict[str, str], context: Context) -> None:
        """Have a context travel in a carrier."""
        self._propagator.inject(carrier, context=context)

    def taken(self, carrier: Mapping[str, str]) -> Context:
        """What a carrier says, and nothing of what is current here."""
        return self._propagator.extract(carrier, context=Context())

    def parent(self, carrier: Mapping[str, str]) -> Context | None:
        """The current context continued by what a carrier says; None where it says nothing valid."""
        if not self.are_in(carrier):
            return None
        context = self._propagator.extract(carrier)
        return context if trace.get_current_span(context).get_span_context().is_valid else None

    def links(self, carriers: Iterable[Mapping[str, str]]) -> list[Link]:
        """Links to the contexts of carriers, one for each different one."""
        links: dict[tuple[int, int], Link] = {}
        for carrier in carriers:
            if not self.are_in(carrier):
                continue
            context = trace.get_current_span(self.taken(carrier)).get_span_context()
            if context.is_valid:
                links.setdefault((context.trace_id, context.span_id), Link(context))
        return list(links.values())


@dataclass(frozen=True)
class Tracing:
    """What a maker of one client's spans works with. namespace: the client's."""

    tracer: Tracer
    instruments: Instruments
    contexts: Contexts
    namespace: str


def is_suppressed() -> bool:
    """Whether what happens now is not to be traced."""
    return any(get_value(key) for key in _SUPPRESSED)
