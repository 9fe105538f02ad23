"""Shared by all span modules: the tracer, the instruments, and contexts in message properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, get_value
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Tracer

from rocketpy_otel.instruments import Instruments

_SUPPRESSED = (_SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation")
"""Context keys set around exporters, so that their own sends are not traced.

The SDK sets the first, which differs in each process; older instrumentations set the second."""


class Contexts:
    """Injects and extracts contexts; carriers are message properties."""

    def __init__(self, propagator: TextMapPropagator) -> None:
        self._propagator = propagator
        self._fields = frozenset(propagator.fields)

    def present_in(self, carrier: Mapping[str, str]) -> bool:
        """Whether a carrier has any context field."""
        return not self._fields.isdisjoint(carrier)

    def inject(self, carrier: dict[str, str], context: Context) -> None:
        """Write a context to a carrier."""
        self._propagator.inject(carrier, context=context)

    def extract(self, carrier: Mapping[str, str]) -> Context:
        """Read a carrier's context, without the current context."""
        return self._propagator.extract(carrier, context=Context())

    def parent(self, carrier: Mapping[str, str]) -> Context | None:
        """Return the current context with the carrier's span as parent; None if the carrier has no span."""
        if not self.present_in(carrier):
            return None
        context = self._propagator.extract(carrier)
        return context if trace.get_current_span(context).get_span_context().is_valid else None

    def links(self, carriers: Iterable[Mapping[str, str]]) -> list[Link]:
        """Return links to the distinct contexts of carriers."""
        links: dict[tuple[int, int], Link] = {}
        for carrier in carriers:
            if not self.present_in(carrier):
                continue
            context = trace.get_current_span(self.extract(carrier)).get_span_context()
            if context.is_valid:
                links.setdefault((context.trace_id, context.span_id), Link(context))
        return list(links.values())


@dataclass(frozen=True)
class Tracing:
    """Dependencies of the span listeners of one client."""

    tracer: Tracer
    instruments: Instruments
    contexts: Contexts
    namespace: str
    """The namespace of that client."""


def is_suppressed() -> bool:
    """Whether tracing is suppressed in the current context."""
    return any(get_value(key) for key in _SUPPRESSED)
