"""How long a `once` token is kept, and how it is forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recovery import Kind, LeftAlone, NothingToDo, Repaired, Result, check, purge_token, repair
from tests.unit.worlds import World, X
from txn import Committed, Engine, InvalidRequestError, Mutation, Request
from txn.model import Cell, Check, Edit
from txn.protocol.codec import Marker, decode_marker, encode_marker
from txn.protocol.row import marker_key
from txn.request import MAX_RETENTION_MS
from txn.testing.faulty import Call, Fault

MARKER = marker_key(b"txn", b"job/7")
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
PUT = [Mutation(X, b"1")]
ROW_KEY = b"transaction.1790000000000.00112233445566778899aabbccddeeff"


def promised(world: World, within_ms: int | None = WEEK_MS) -> Committed:
    return world.engine.commit(PUT, once="job/7", once_retention_ms=within_ms)


def repairs(world: World, **options: int) -> list[Result]:
    """Repair what fsck finds of markers."""
    context = world.engine.context
    findings = list(check(context, **options))  # type: ignore[arg-type]
    markers = [finding for finding in findings if finding.kind is Kind.EXPIRED_MARKER]
    return [repair(context, finding) for finding in markers]


def cells_left(world: World) -> list[Cell]:
    """What the store has of the marker's row."""
    cells = world.store.read([MARKER, MARKER.lock, MARKER.tag]).values()
    return [cell for cell in cells if cell is not None]


@pytest.mark.parametrize("marker", [Marker(ROW_KEY), Marker(ROW_KEY, 1), Marker(ROW_KEY, WEEK_MS)])
def test_a_marker_survives_its_bytes(marker: Marker) -> None:
    assert decode_marker(encode_marker(marker)) == marker
    assert (encode_marker(marker) == ROW_KEY) is (marker.retention_ms is None)


@pytest.mark.parametrize("promise", [b"", b"0", b"-1", b"x", b"1 2", b"9" * 17, "٣".encode()])
def test_a_promise_that_does_not_decode_is_none(promise: bytes) -> None:
    assert decode_marker(ROW_KEY + b" " + promise) == Marker(ROW_KEY)


WAYS: dict[str, Callable[[Engine], object]] = {
    "commit": lambda e: e.commit(PUT, once="job/7", once_retention_ms=5),
    "commit_many": lambda e: e.commit_many(
        [Request(tuple(PUT), once=b"job/7", once_retention_ms=5)]
    ),
    "run": lambda e: e.run(lambda t: t.put(X, "1"), once="job/7", once_retention_ms=5),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_promise_is_kept_with_the_marker(way: str) -> None:
    world = World()
    WAYS[way](world.engine)
    assert len(world.rows()) == 1
    assert decode_marker(world.value(MARKER) or b"").retention_ms == 5


def test_a_block_makes_the_promise_as_well() -> None:
    world = World()
    with world.engine.transaction(once="job/7", once_retention_ms=5) as t:
        t.put(X, "1")
    assert t.result is not None
    assert world.value(MARKER) == t.result.transaction + b" 5"  # and neither digest nor answer


@pytest.mark.parametrize("first_ms", [None, 5])
@pytest.mark.parametrize("second_ms", [None, 7])
def test_a_repeat_is_told_the_first_ones_transaction(
    first_ms: int | None, second_ms: int | None
) -> None:
    world = World()
    first = promised(world, first_ms)
    marker = world.value(MARKER)
    again = world.engine.commit(PUT, once="job/7", once_retention_ms=second_ms)
    assert again == Committed(first.transaction, first.timestamp, repeated=True)
    assert world.value(MARKER) == marker


@pytest.mark.parametrize(
    ("once", "given", "message"),
    [
        ("t", 0, "at least 1"),
        ("t", "7d", "whole number"),
        ("t", True, "whole number"),
        ("t", MAX_RETENTION_MS + 1, "too long.*limit="),
        (None, 5, "give once"),
    ],
)
def test_a_promise_that_makes_no_sense_is_refused(
    once: str | None, given: object, message: str
) -> None:
    world = World()
    with pytest.raises(InvalidRequestError, match=message):
        world.engine.commit(PUT, once=once, once_retention_ms=given)  # type: ignore[arg-type]
    assert world.rows() == []


def test_fsck_forgets_a_token_when_its_promise_has_run_out() -> None:
    world = World()
    promised(world)
    world.clock.advance(WEEK_MS - 1)
    assert repairs(world) == []
    world.clock.advance(2)
    assert repairs(world) == [Repaired("deleted")]
    assert cells_left(world) == []
    assert repairs(world) == []
    assert world.value(X) == b"1"


def test_a_short_promise_lasts_as_long_as_the_retention() -> None:
    """A late request of the first transaction must find its marker, or nothing that it can harm."""
    world = World()
    promised(world, 1)
    world.clock.advance(DAY_MS - 10)
    assert repairs(world) == []
    assert repairs(world, retention_ms=DAY_MS - 100) == [Repaired("deleted")]


def test_without_a_promise_a_token_is_kept() -> None:
    world = World()
    promised(world, None)
    world.clock.advance(1_000 * WEEK_MS)
    assert repairs(world, retention_ms=0) == []
    assert promised(world).repeated


def test_a_marker_that_is_being_asked_for_is_left_alone() -> None:
    world = World()
    promised(world)
    world.clock.advance(WEEK_MS + 1)
    findings = [f for f in check(world.engine.context) if f.kind is Kind.EXPIRED_MARKER]
    lock = Check(MARKER.lock, b"", ((MARKER.lock, ROW_KEY),))
    assert world.store.check_and_put([lock]) == [True]
    assert isinstance(repair(world.engine.context, findings[0]), NothingToDo)
    assert world.value(MARKER) is not None
    assert repairs(world, retention_ms=0) == []


def test_a_marker_that_was_forgotten_and_came_again_is_another() -> None:
    """A finding may be old: the token has a new promise since."""
    world = World()
    promised(world, 1)
    world.clock.advance(DAY_MS + 1)
    findings = [f for f in check(world.engine.context) if f.kind is Kind.EXPIRED_MARKER]
    repairs(world)
    promised(world)
    assert isinstance(repair(world.engine.context, findings[0]), NothingToDo)
    assert promised(world).repeated


def test_other_rows_of_the_transaction_table_are_no_markers() -> None:
    world = World()
    odd = [marker_key(b"txn", b"odd")._replace(column=b"note"), MARKER._replace(row=b"doctor")]
    world.store.write([Edit(key, ROW_KEY + b" 1", 5) for key in odd])
    assert repairs(world, retention_ms=0) == []


def test_where_a_store_cannot_forget_it_says_so() -> None:
    world = World()
    promised(world, 1)
    world.faults.features = world.faults.features - {"row_mutations"}
    world.clock.advance(DAY_MS + 1)
    before = cells_left(world)
    (result,) = repairs(world)
    assert isinstance(result, LeftAlone) and "Thrift 2" in result.why
    assert cells_left(world) == before


def test_a_person_may_forget_a_token_at_any_time() -> None:
    world = World()
    promised(world, None)
    assert purge_token(world.engine.context, b"job/7") == Repaired("deleted")
    assert cells_left(world) == []
    assert not promised(world).repeated


def test_a_token_that_nobody_has_used_cannot_be_forgotten() -> None:
    with pytest.raises(InvalidRequestError, match="no request with this token"):
        purge_token(World().engine.context, b"job/8")


def test_a_repeat_at_the_same_time_finds_the_token_or_commits_once() -> None:
    """Who comes before the purge finds the first; of all who come after, one commits."""
    for stop in range(8):
        world = World()
        first = promised(world, None)
        other = world.client(seed=7)
        told: list[Committed] = []

        def repeat(
            call: Call, stop: int = stop, told: list[Committed] = told, other: Engine = other
        ) -> Fault:
            if call.number == stop:
                told.append(other.commit(PUT, once="job/7"))
            return Fault()

        world.faults.calls, world.faults.plan = 0, repeat
        result = purge_token(world.engine.context, b"job/7")
        again = other.commit(PUT, once="job/7")
        anew = [each.transaction for each in (*told, again) if not each.repeated]
        assert len(anew) == 1 or (not anew and isinstance(result, NothingToDo))
        assert again.transaction in (first.transaction, *anew)
