"""Spans for tests: the SDK of OpenTelemetry, with an exporter that keeps them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What a program with a provider has exported until now."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def commits(self) -> list[ReadableSpan]:
        """The library's, in the order in which they began."""
        found = [span for span in self._exporter.get_finished_spans() if span.name == "txn.commit"]
        return sorted(found, key=lambda span: span.start_time or 0)

    def clear(self) -> None:
        self._exporter.clear()


@contextmanager
def traced() -> Iterator[Spans]:
    """Set up a provider for this process, and take it away again: otherwise it is for good."""
    spans = Spans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        yield spans
    spans.provider.shutdown()


def attribute(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(name)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: object) -> int:
    found: int = span.get_span_context().span_id  # type: ignore[attr-defined]
    return found
