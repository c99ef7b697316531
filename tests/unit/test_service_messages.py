"""The table of the service's messages: each value comes back from the wire as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.transport import TCyMemoryBuffer

from txn import Cell, Committed, Delete, Exact, Key, Mutation, Outcome, Request, Row, Some, Version
from txn.assertions import Assertion
from txn.errors import ConflictError, DeadlineError, MaybeApplied
from txn.model import Check, Edit, Family, RowExclusion
from txn.service.messages import IDL, METHODS, TimedRequest
from txn.service.store import RemoteService, ServedStore
from txn.spans import Span

X, Y = Key("x", "d", "v", "data"), Key("y", "d", "v", "data")
CELLS = {X: Cell(b"1", 5), Y: None}
CHANGES: list[Mutation | Delete] = [Mutation(X, b"1"), Delete(Y)]
ASSERTIONS: list[Assertion] = [Some(X) & ~Exact(Y, b""), Version(X, None)]
SPAN = Span(b"data", b"a", None, frozenset({(b"d", b"v")}))
FAMILIES = {b"d": Family(1, 5, None, None, True, 2, b"txn"), b"e": Family()}
EDITS = [Edit(X, b"1", 5), Edit(X, None, 6), Edit(X, b"2", None)]
PAGE = ([Row(b"x", {X: Cell(b"1", 5)})], b"y")
DONE = Committed(b"t", 5, repeated=True, complete=False)
TIMED = TimedRequest(
    Request(tuple(CHANGES), tuple(ASSERTIONS), b"o", {"a": "b"}, 7, None, b"c"), 8, {"c": "d"}
)
FIRST = Committed(b"t", 5, True, True, b"d" * 16, True, {"a": (1, None)})
SETTLED = (Outcome.COMMITTED, DONE)

SAMPLES: Mapping[str, tuple[list[Any], Any]] = {
    "commit": ([CHANGES, ASSERTIONS], DONE),
    "commitMany": ([[TIMED, TimedRequest(Request((Delete(X),)), None, None)]], [DONE]),
    "read": ([[X, Y]], CELLS),
    "scan": ([SPAN], PAGE),
    "view": ([[X, Y], [SPAN]], (CELLS, [{X: Cell(b"1", 5)}, {}])),
    "database": ([], IDL.Database(b"txn", "fenced/2", True)),
    "outcome": ([b"t"], Outcome.ABORTED),
    "findOnce": ([b"o"], (Outcome.COMMITTED, FIRST)),
    "findOutcome": ([b"request.1.1", 5], (Outcome.UNKNOWN, None)),
    "findOutcomes": ([b"request.1.1", 2, 5], [SETTLED, SETTLED]),
    "ensureTable": ([b"data", [b"d"]], None),
    "storeRead": ([[X]], CELLS),
    "storeVersions": ([[X], 2], {X: [Cell(b"2", 6), Cell(b"1", 5)], Y: []}),
    "storeWrite": ([EDITS, True, False], None),
    "storeCheck": (
        [
            [
                Check(X, b"0", ((X, b"1"),), tuple(EDITS)),
                Check(X, b"", ((X, b"1"),)),
                Check(X, None, ((X, b"1"),), is_deferred=True),
            ],
            None,
        ],
        [True, False, True],
    ),
    "storeScan": (
        [
            b"data",
            b"",
            None,
            [(b"d", b"v")],
            RowExclusion(b"d", b"v", frozenset({b"1", b"2"})),
            True,
        ],
        ([], None),
    ),
    "storeTables": ([], [b"data"]),
    "storeDescribe": ([b"data"], FAMILIES),
    "storeEnsure": ([b"data", FAMILIES], None),
    "storeCompact": ([b"data", 5], None),
}


def send(message: Any) -> Any:
    """Return what the other side reads of a message."""
    protocol = TCyBinaryProtocol(TCyMemoryBuffer())
    protocol.write_struct(message)
    received = type(message)()
    protocol.read_struct(received)
    return received


@pytest.mark.parametrize("name", METHODS)
def test_arguments_and_results_come_back_from_the_wire(name: str) -> None:
    method = METHODS[name]
    values, result = SAMPLES[name]
    arguments = getattr(IDL.Transactional, f"{name}_args")
    message = send(arguments(*method.encode((*values, IDL.Options(token="t")))))
    *decoded, options = method.decode(list(vars(message).values()))
    assert decoded == values
    assert options.token == "t"
    if method.result is None:
        assert result is None
    else:
        reply = getattr(IDL.Transactional, f"{name}_result")
        received = send(reply(success=method.result.encode(result)))
        assert method.result.decode(received.success) == result


def test_a_durable_write_without_edits_reaches_the_server() -> None:
    """Its answer is the proof that all before it is on the server's disk."""
    sent: list[str] = []

    class Service(RemoteService):
        def __init__(self) -> None: ...

        def call(self, name: str, *values: Any, **options: Any) -> None:
            sent.append(name)

    store = ServedStore(Service())
    store.write([], durable=False)
    assert sent == []
    store.write([])
    assert sent == ["storeWrite"]


def test_a_table_that_is_absent_is_described_by_nothing() -> None:
    codec = METHODS["storeDescribe"].result
    assert codec is not None and codec.decode(send(codec.encode(None))) is None


def test_each_result_of_many_is_one_of_its_fields() -> None:
    codec = METHODS["commitMany"].result
    assert codec is not None
    errors = [ConflictError("lost", key=X, transaction=b"t"), DeadlineError("late")]
    decoded = codec.decode([send(message) for message in codec.encode(errors)])
    assert [(type(each), str(each)) for each in decoded] == [(type(e), str(e)) for e in errors]
    (unknown,) = codec.decode([IDL.Result()])
    assert type(unknown) is MaybeApplied
