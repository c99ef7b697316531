"""Traces: a span for each request, by the SDK of OpenTelemetry itself."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from tests.tracing import Spans, attribute, id_of, parent_of, traced
from tests.unit import parted
from tests.unit.worlds import TABLE, World, X, Y, after_status, stopped_at
from txn import (
    AssertionFailedError,
    CommitOutcomeUnknown,
    ConflictError,
    CorruptRowError,
    DeadlineError,
    Engine,
    Exact,
    InvalidRequestError,
    Key,
    MaybeApplied,
    Mutation,
    NotApplied,
    StoreError,
    Version,
    connect_async,
)
from txn.client.parts import PartsClient
from txn.events import Conflict, Ended, Event, Helped, Phase, name_outcome
from txn.protocol.statuses import ProtocolName, Status
from txn.testing.faulty import Fault, Reply
from txn.text import explain_failure
from txn.tracing import capture_trace, continue_trace, continue_traces

SECRET = b"nobody's business"
ROW = b"transaction.1700000000000." + b"0" * 32
HELD, ODD = "held, key data/x/d:x", "stored bytes do not decode"
JUNK = "no row key, 17 bytes"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with traced() as found:
        yield found


def names(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def told(span: ReadableSpan) -> str:
    return span.to_json()


def blamed() -> ConflictError:
    """What is raised where the holder of a lock cannot be ended."""
    error = ConflictError("held", key=X)
    error.add_cause(CorruptRowError("odd", value=SECRET))
    return error


def test_a_commit_is_a_span_with_its_phases(spans: Spans) -> None:
    world = World()
    with spans.tracer.start_as_current_span("caller") as caller:
        done = world.engine.commit([Mutation(X, SECRET), Mutation(Y, b"2")], [Version(X, None)])
    (span,) = spans.commits()
    assert parent_of(span) == id_of(caller)
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes or {}) == {
        "db.system.name": "hbase",
        "db.operation.name": "commit",
        "db.operation.batch.size": 2,
        "db.collection.name": "data",
        "txn.keys": 2,
        "txn.outcome": "committed",
        "txn.happened": "yes",
        "txn.transaction": done.transaction.decode(),
        "txn.tries": 1,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert names(span) == ["lock", "assert", "decide", "put", "clean", "unlock"]
    times = [event.timestamp for event in span.events]
    assert times == sorted(times)
    assert span.start_time is not None and span.end_time is not None
    assert span.start_time <= times[0] <= times[-1] <= span.end_time
    assert SECRET.decode() not in told(span)


def test_one_that_meets_a_holder_tells_of_it_and_of_its_tries(spans: Spans) -> None:
    world = World()
    holder = stopped_at(world, Status.ASSERTED)
    spans.clear()
    world.engine.commit([Mutation(X, b"3")])
    (span,) = spans.commits()
    assert attribute(span, "txn.tries") == 2
    (conflict,) = [event for event in span.events if event.name == "conflict"]
    assert conflict.attributes == {"txn.key": "data/x/d:x", "txn.holder": holder.decode()}


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_what_others_wrote_into_a_lock_is_told_to_nobody(
    spans: Spans, protocol: ProtocolName, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(protocol=protocol)
    world.put(world.engine.context.rules.lock_of(X), SECRET)

    def stumble(event: Event) -> None:
        if isinstance(event, Conflict | Helped):
            raise ZeroDivisionError

    world.on_event = stumble  # type: ignore[method-assign]
    world.client(seed=7).commit_many([([Mutation(X, b"1")], [])])
    assert "a listener failed at an event: Conflict" in caplog.text
    (span,) = spans.commits()
    assert "conflict" in names(span)
    assert SECRET.decode() not in told(span) + caplog.text


def test_a_transaction_in_parts_has_one_span(spans: Spans) -> None:
    events: list[Event] = []
    with parted.open_rows("six-phase") as engine:
        client = PartsClient(Engine(engine.context.store, table="rows", on_event=events.append))
        begun = [client.begin(once=once) for once in (b"token", b"token", None)]
        times = [client.write(begun[0], 0, 0, [Mutation(parted.X, SECRET)])]
        spans.clear()
        done = client.commit(begun[0], [1], max(times))
        again = client.commit(begun[1], [], 0)
        client.abort(begun[2], "not wanted")
        with pytest.raises(ConflictError):
            client.commit(begun[2], [], 0)
    assert again.transaction == done.transaction == begun[0]
    first, second, third = spans.commits()
    assert names(first)[-3:] == ["put", "clean", "unlock"]
    assert attribute(first, "txn.transaction") == begun[0].decode()
    assert [attribute(span, "txn.outcome") for span in (first, second, third)] == [
        event.outcome for event in events if isinstance(event, Ended)
    ]
    assert attribute(second, "txn.happened") == "yes"
    assert (third.status.status_code, attribute(third, "txn.happened")) == (StatusCode.ERROR, "no")
    assert SECRET.decode() not in "".join(map(told, (first, second, third)))


def test_a_call_that_is_sent_again_is_an_event(spans: Spans) -> None:
    world = World()
    after_status(world, Status.COMPLETE, Fault(frozenset(), Reply.NOT_APPLIED))
    world.engine.commit([Mutation(X, b"3")])
    (span,) = spans.commits()
    (retry,) = [event for event in span.events if event.name == "retry"]
    assert retry.attributes == {"txn.store.call": "check_and_put"}


def test_what_did_not_happen_is_said_so_without_values(spans: Spans) -> None:
    world = World()
    world.put(X, SECRET)
    with pytest.raises(AssertionFailedError):
        world.engine.commit([Mutation(X, SECRET + b"2")], [Exact(X, SECRET + b"1")])
    (span,) = spans.commits()
    shown = [attribute(span, name) for name in ("txn.outcome", "txn.happened", "error.type")]
    assert shown == ["assertion", "no", "AssertionFailedError"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is not None
    assert span.status.description.startswith("it did not happen: AssertionFailedError: ")
    (event,) = [event for event in span.events if event.name == "exception"]
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "assertion failed: data/x/d:x"
    assert SECRET.decode() not in told(span)


def test_what_may_have_happened_is_said_so(spans: Spans) -> None:
    world = World()
    after_status(world, Status.ASSERTED, Fault(frozenset(), Reply.MAYBE_APPLIED))
    fail = world.faults.plan

    def plan(call: object) -> Fault:
        fault = fail(call)  # type: ignore[arg-type]
        if fault.reply is Reply.MAYBE_APPLIED:
            world.faults.plan = lambda call: Fault(frozenset(), Reply.MAYBE_APPLIED)
        return fault

    world.faults.plan = plan
    with pytest.raises(CommitOutcomeUnknown) as error:
        world.engine.commit([Mutation(X, b"1")])
    (span,) = spans.commits()
    assert attribute(span, "txn.happened") == "maybe"
    assert attribute(span, "txn.transaction") == error.value.transaction.decode()
    assert span.status.description is not None
    assert span.status.description.startswith("it may have happened: CommitOutcomeUnknown")


def hold_engine() -> tuple[Engine, threading.Event, threading.Event]:
    """Return an engine that is held at its first phase, when it came there, and how to let it."""
    world, came, go = World(), threading.Event(), threading.Event()

    def hold(event: object) -> None:
        if isinstance(event, Phase):
            came.set()
            assert go.wait(60)

    world.on_event = hold  # type: ignore[method-assign]
    return world.client(seed=7), came, go


def test_futures_have_the_span_of_who_asked_for_them(spans: Spans) -> None:
    callers = []
    futures = []
    engine, came, go = hold_engine()
    first = engine.submit(([Mutation(Key("first", "d", "x", TABLE), b"1")], []))
    assert came.wait(60)
    for number in range(3):
        with spans.tracer.start_as_current_span(f"caller {number}") as caller:
            callers.append(caller)
            futures.append(engine.submit(([Mutation(Key(str(number), "d", "x"), b"1")], [])))
    go.set()
    done = [each.result(60) for each in (first, *futures)]
    engine.close()
    found = {attribute(span, "txn.transaction"): span for span in spans.commits()}
    assert [parent_of(found[each.transaction.decode()]) for each in done] == [
        None,
        *map(id_of, callers),
    ]
    assert all("decide" in names(span) for span in found.values())


def test_tasks_have_the_span_of_who_awaits(spans: Spans) -> None:
    async def work(name: str) -> int:
        async with connect_async(f"memory://{name}", table="t") as engine:
            await engine.ensure_table("t", ["d"])
            with spans.tracer.start_as_current_span("task") as task:
                await engine.commit([Mutation(Key("x", "d", "c"), "1")])
                await engine.commit_many([([Mutation(Key("x", "d", "c"), "2")], [])])
                async with engine.transaction() as t:
                    t.put(Key("x", "d", "c"), "3")
            return id_of(task)

    task = asyncio.run(work("traced-tasks"))
    assert [parent_of(span) for span in spans.commits()] == [task] * 3


def test_each_request_of_many_has_its_own_span(spans: Spans) -> None:
    world = World()
    world.engine.commit_many([([Mutation(X, b"1")], []), ([Mutation(Y, b"1")], [Exact(Y, b"2")])])
    assert [attribute(span, "txn.outcome") for span in spans.commits()] == [
        "committed",
        "assertion",
    ]
    for span, name, number in zip(spans.commits(), ("decide", "lock"), (1, 2), strict=True):
        (event,) = [event for event in span.events if event.name == name]
        assert (event.attributes or {})["txn.batch.transactions"] == number


def test_a_context_goes_elsewhere_as_text(spans: Spans) -> None:
    assert capture_trace() == {}
    with spans.tracer.start_as_current_span("driver") as driver:
        headers = capture_trace()
    context = driver.get_span_context()
    ids = f"{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert headers == {"traceparent": f"00-{ids}"}
    world = World()
    with continue_trace(headers):
        world.engine.commit([Mutation(X, b"1")])
    world.engine.commit([Mutation(X, b"2")])
    first, second = spans.commits()
    assert (parent_of(first), parent_of(second)) == (id_of(driver), None)
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("bad", [{"traceparent": "nonsense"}, {b"traceparent": b"\xff"}, {}, None])
def test_bad_headers_harm_nobody(spans: Spans, bad: dict[str, str] | None) -> None:
    world = World()
    with continue_trace(bad), continue_traces([bad]):
        world.engine.commit([Mutation(X, b"1")])
    (span,) = spans.commits()
    assert parent_of(span) is None


def test_headers_are_each_of_a_request_of_its_own(spans: Spans) -> None:
    world = World()
    with continue_traces([{"traceparent": PARENT}, None]):
        world.engine.commit_many([([Mutation(X, b"1")], []), ([Mutation(Y, b"1")], [])])
        world.engine.commit([Mutation(X, b"2")])  # of another number: these are not for it
    assert [parent_of(span) for span in spans.commits()] == [0xB7AD6B7169203331, None, None]


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (ConflictError("held", key=X, holder=ROW), "conflict", f"{HELD}, holder {ROW.decode()}"),
        (ConflictError("held", key=X, holder=SECRET), "conflict", f"{HELD}, holder {JUNK}"),
        (blamed(), "conflict", f"{HELD}, cause CorruptRowError"),
        (DeadlineError("too late"), "deadline", "too late"),
        (InvalidRequestError("bad", name="x"), "invalid", "bad name='x'"),
        (NotApplied("the store is away"), "failed", "the store is away"),
        (CorruptRowError("odd", value=SECRET), "failed", ODD),
        (CorruptRowError("odd", row=ROW, cause=SECRET), "failed", f"{ODD}: {ROW.decode()}"),
        (StoreError("x" * 9_000), "failed", "x" * 500),
        (CommitOutcomeUnknown(b"t"), "unknown", "commit outcome unknown transaction=b't'"),
        (KeyboardInterrupt(SECRET.decode()), "unknown", "broken off"),
    ],
)
def test_each_error_has_an_outcome_and_a_text(
    error: BaseException, outcome: str, text: str
) -> None:
    assert name_outcome(error) == outcome
    assert explain_failure(error) == text
    lost = CommitOutcomeUnknown(b"t")
    lost.__cause__ = MaybeApplied(SECRET.decode())
    assert explain_failure(lost) == "the answer was lost: MaybeApplied"


@pytest.mark.parametrize("first", ["", "from opentelemetry import trace;"])
def test_a_process_without_a_provider_does_nothing(first: str) -> None:
    program = (
        f"import sys; {first} from txn import connect, Key, Mutation\n"
        "from txn.tracing import begin_traces, capture_trace\n"
        "with connect('memory://', table='t') as engine:\n"
        "    engine.ensure_table('t', ['d'])\n"
        "    engine.commit([Mutation(Key('x', 'd', 'c'), '1')])\n"
        "assert begin_traces([None], remote=True) == [None], capture_trace() == {}\n"
        "print('opentelemetry.trace' in sys.modules, 'opentelemetry.sdk' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == ([str(bool(first)), "False"], "")
