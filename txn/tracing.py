"""An OpenTelemetry span for each request of a commit, if the program has set up a provider.

It needs no setting: a process that has not imported `opentelemetry.trace` has no provider, and then
nothing is done. The caller's context is the parent, and is passed in W3C headers to servers and
Spark tasks. Spans contain keys, but no values of cells.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from txn import events
from txn.events import CommitOutcome, Conflict, Event, Listener, Phase, Retried
from txn.host.extras import import_extra
from txn.request import Committed, Request
from txn.text import escape, explain_failure, holder_text, key_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Headers = Mapping[str, str]  # W3C's `traceparent`, and `tracestate` if there is one
W3C = ("traceparent", "tracestate")
NAME = "txn.commit"
API = "opentelemetry.trace"
PARENTS = "txn.parents"

HAPPENED: Mapping[CommitOutcome, str] = {"committed": "yes", "repeated": "yes", "unknown": "maybe"}
"""Whether the request's changes were written; for all other outcomes they never will be."""


@dataclass(slots=True, eq=False)
class Trace:
    """The span of one request, from its call to its result."""

    _span: Span

    @property
    def headers(self) -> Headers:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        return _inject(set_span_in_context(self._span))

    def add_event(self, event: Event) -> None:
        """Add an event of the request, or of its batch, to the span."""
        match event:
            case Phase(name, outcome, transactions, failed, elapsed_ms):
                facts: dict[str, Any] = {"txn.phase.outcome": outcome}
                facts |= {"txn.batch.transactions": transactions, "txn.batch.failed": failed}
                if elapsed_ms is not None:
                    facts["txn.phase.seconds"] = elapsed_ms / 1000
                self._span.add_event(name, facts, event.at_ns)
            case Conflict(_, key, holder):
                facts = {"txn.key": key_text(key)}
                if holder:  # empty: it has just released the lock
                    facts["txn.holder"] = holder_text(holder)
                self._span.add_event("conflict", facts, event.at_ns)
            case Retried(call):
                self._span.add_event("retry", {"txn.store.call": call}, event.at_ns)

    def end(
        self,
        result: Committed | BaseException,
        *,
        transaction: bytes | None = None,
        tries: int | None = None,
    ) -> None:
        """End the span with the result of the request.

        transaction: the row key of a transaction that did not commit.
        """
        from opentelemetry.trace import StatusCode  # noqa: PLC0415

        outcome = events.name_outcome(result)
        happened = HAPPENED.get(outcome, "no")
        row_key = getattr(result, "transaction", None) or transaction
        self._span.set_attribute("txn.outcome", outcome)
        self._span.set_attribute("txn.happened", happened)
        if row_key is not None:
            self._span.set_attribute("txn.transaction", escape(row_key))
        if tries is not None:
            self._span.set_attribute("txn.tries", tries)
        if isinstance(result, BaseException):
            kind, text = type(result).__name__, explain_failure(result)
            self._span.set_attribute("error.type", kind)
            self._span.add_event("exception", {"exception.type": kind, "exception.message": text})
            said = "it may have happened" if happened == "maybe" else "it did not happen"
            self._span.set_status(StatusCode.ERROR, f"{said}: {kind}: {text}")
        self._span.end()

    def end_future(self, future: Future[Committed]) -> None:
        self.end(events.result_of(future))


def begin_traces(requests: Sequence[Request], *, remote: bool) -> list[Trace | None]:
    """Begin a span for each request, under the context of this thread; the caller ends each.

    remote: whether the request is sent to a server.
    """
    tracer = find_tracer()
    if tracer is None:
        return [None] * len(requests)
    from opentelemetry.context import get_value  # noqa: PLC0415
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    given: Any = get_value(PARENTS)
    parents = given if given and len(given) == len(requests) else [None] * len(requests)
    kind = SpanKind.CLIENT if remote else SpanKind.INTERNAL
    return [
        Trace(tracer.start_span(NAME, parent, kind, _describe(request)))
        for request, parent in zip(requests, parents, strict=True)
    ]


def list_headers(traces: Sequence[Trace | None]) -> list[Headers | None]:
    return [None if trace is None else trace.headers for trace in traces]


def watch_batch(known: Mapping[bytes, Trace | None], on_event: Listener) -> Listener:
    """Return a listener that reports the events of a batch to the spans of its requests, by row
    key, and all events to `on_event`. If no span is recorded, return `on_event` itself."""
    traces = {key: trace for key, trace in known.items() if trace and trace._span.is_recording()}
    if not traces:
        return on_event

    def report(event: Event) -> None:
        on_event(event)
        match event:
            case Phase(outcome="started"):
                return
            case Conflict(transaction):
                if (trace := traces.get(transaction)) is not None:
                    trace.add_event(event)
            case _:
                for trace in traces.values():
                    trace.add_event(event)

    return events.guard(report)


def capture_trace() -> dict[str, str]:
    """Return this thread's context as W3C headers, for a task or process elsewhere, or empty."""
    if API not in sys.modules:
        return {}
    from opentelemetry.context import get_current  # noqa: PLC0415

    return dict(_inject(get_current()))


def continue_trace(headers: Headers | None) -> AbstractContextManager[None]:
    """Continue under a context that was captured elsewhere, if this process traces."""
    return _attach(_extract(headers)) if headers and _has_api() else nullcontext()


def continue_traces(headers: Sequence[Headers | None]) -> AbstractContextManager[None]:
    """Continue under a captured context for each request that is committed together next."""
    if not any(headers) or not _has_api():
        return nullcontext()
    from opentelemetry.context import set_value  # noqa: PLC0415

    parents = [_extract(each) if each else None for each in headers]
    return _attach(set_value(PARENTS, parents))


@contextmanager
def _attach(context: Context) -> Iterator[None]:
    from opentelemetry.context import attach, detach  # noqa: PLC0415

    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def flush_traces() -> None:
    """Send ended spans now, because the process may be killed before it would send them."""
    if find_tracer() is not None:
        from opentelemetry.trace import get_tracer_provider  # noqa: PLC0415

        flush = getattr(get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(5_000)


def _describe(request: Request) -> dict[str, Any]:
    tables = {key.table or b"" for key in request.keys}
    facts: dict[str, Any] = {"db.system.name": "hbase", "db.operation.name": "commit"}
    facts["txn.keys"] = len(request.keys)
    if len(request.mutations) > 1:
        facts["db.operation.batch.size"] = len(request.mutations)
    if len(tables) == 1:
        facts["db.collection.name"] = escape(tables.pop())
    return facts


def find_tracer() -> Tracer | None:
    """Return the program's tracer; None: nothing is traced."""
    if API not in sys.modules:
        return None
    with import_extra("otel"):
        from opentelemetry import trace  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else _make_tracer(provider)


@cache
def _make_tracer(provider: Any) -> Tracer:
    tracer: Tracer = provider.get_tracer("txn")
    return tracer


def _has_api() -> bool:
    """Whether the API is there. Headers have arrived, so a task may still set up a provider."""
    try:
        import opentelemetry.trace  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        return False
    return True


def _inject(context: Context) -> Headers:
    headers: dict[str, str] = {}
    _make_propagator().inject(headers, context)
    return headers


def _extract(headers: Headers) -> Context:
    known = {name: text for name, text in headers.items() if isinstance(text, str)}
    context: Context = _make_propagator().extract(known)
    return context


@cache
def _make_propagator() -> Any:
    """Always W3C's, whatever the program has chosen, because both sides must use the same."""
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator()
