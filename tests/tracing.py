"""Spans for tests: the SDK of OpenTelemetry, with an exporter that keeps them in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPANS_VARIABLE = "HBASE_TXN_TEST_SPANS"
"""Names the file to which PROVIDER adds the spans that are sent."""

PROVIDER = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

file = open(os.environ["HBASE_TXN_TEST_SPANS"], "a")
exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + chr(10))
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
"""
"""As sitecustomize.py: gives a process a provider, which sends nothing unless it is told to."""


def read_spans(path: Path) -> list[dict[str, Any]]:
    """Return the spans that processes have sent."""
    return [json.loads(line) for line in path.read_text().splitlines()]


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
