"""The checker is checked: hand-made histories, one for each anomaly, and good ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

import pytest

from tests.history.anomalies import Anomaly, Edge, Kind
from tests.history.check import check_lists, check_registers
from tests.history.events import Deletion, Ending, Missing, Read, Transaction, Write

pytestmark = pytest.mark.fast

LONGEST_CPU_S = 5.0


def t(
    name: str,
    *events: Read | Write,
    at: tuple[int, int | None] = (0, 100),
    ending: Ending = Ending.COMMITTED,
) -> Transaction:
    return Transaction(name, events, *at, ending)


def read(key: str, *elements: int) -> Read:
    return Read(key, elements)


def kinds(found: Sequence[Anomaly]) -> list[Kind]:
    return [anomaly.kind for anomaly in found]


def edges(anomaly: Anomaly) -> set[Edge]:
    return {step.edge for step in anomaly.cycle}


def one(found: Sequence[Anomaly]) -> Anomaly:
    (anomaly,) = found
    return anomaly


# ------------------------------------------------------------------------------- good histories


def test_a_history_that_is_serial_has_nothing_against_it() -> None:
    history = [
        t("a", read("x"), Write("x", 1), at=(0, 1)),
        t("b", read("x", 1), Write("x", 2), Write("y", 1), at=(2, 3)),
        t("c", read("x", 1, 2), read("y", 1), at=(4, 5)),
    ]
    assert check_lists(history) == []


def test_transactions_at_the_same_time_may_come_in_any_order() -> None:
    history = [
        t("a", Write("x", 1), at=(0, 10)),
        t("b", read("x"), at=(9, 20)),
        t("c", read("x", 1), at=(1, 9)),
    ]
    assert check_lists(history) == []


def test_what_was_aborted_and_not_seen_does_not_count() -> None:
    gone = t("gone", read("x", 7), Write("x", 1), ending=Ending.ABORTED)
    assert check_lists([gone, t("a", read("x"))]) == []


@pytest.mark.parametrize("elements", [(), (1,)])
def test_what_is_unknown_may_have_happened_or_not(elements: tuple[int, ...]) -> None:
    unknown = t("u", Write("x", 1), at=(0, None), ending=Ending.UNKNOWN)
    assert check_lists([unknown, t("a", read("x", *elements), at=(50, 60))]) == []


def test_what_is_unknown_may_happen_late() -> None:
    history = [
        t("u", Write("x", 1), at=(0, 5), ending=Ending.UNKNOWN),
        t("a", read("x"), at=(10, 20)),
        t("b", read("x", 1), at=(30, 40)),
    ]
    assert check_lists(history) == []


def test_own_writes_are_seen_and_are_nobody_elses() -> None:
    lists = [t("a", Write("x", 1), read("x", 1), Write("x", 2), read("x", 1, 2))]
    registers = [t("a", Write("x", 1), Read("x", 1), Write("x", 2), Read("x", 2))]
    assert check_lists(lists) == check_registers(registers) == []


def test_registers_are_ordered_by_their_timestamps() -> None:
    history = [
        t("a", Write("x", "a", at=5), at=(0, 9)),
        t("b", Write("x", "b", at=4), at=(0, 9)),
        t("c", Read("x", "a", at=5), at=(10, 11)),
    ]
    assert check_registers(history) == []


def put_and_deleted(*others: Transaction) -> list[Transaction]:
    return [
        t("a", Write("x", "a", at=5), at=(0, 10)),
        t("b", Read("x", "a", at=5), Deletion("x", "b", at=6), at=(20, 30)),
        *others,
    ]


@pytest.mark.parametrize("at", [(0, 9), (9, 21), (21, 40), (31, 40)])
def test_nothing_is_read_before_a_put_and_after_a_deletion(at: tuple[int, int]) -> None:
    assert check_registers(put_and_deleted(t("c", Read("x", None), at=at))) == []


def test_nobody_vouches_for_a_deletion_of_unknown_ending() -> None:
    unknown = t("u", Deletion("y", "u"), at=(0, None), ending=Ending.UNKNOWN)
    history = [
        unknown,
        t("a", Write("y", "a", at=5), at=(0, 5)),
        t("b", Read("y", None), at=(6, 9)),
    ]
    assert check_registers(history) == []


def test_own_deletions_are_seen() -> None:
    history = [t("a", Write("x", "a"), Read("x", "a"), Deletion("x", "d"), Read("x", None))]
    assert check_registers(history) == []


# ----------------------------------------------------------------------------- bad histories


def test_g0_is_seen() -> None:
    history = [
        t("a", Write("x", 1), Write("y", 1)),
        t("b", Write("x", 2), Write("y", 2)),
        t("c", read("x", 1, 2)),
        t("d", read("y", 2, 1)),
    ]
    found = one(check_lists(history))
    assert found.kind is Kind.G0
    assert sorted(found.names) == ["a", "b"]
    assert edges(found) == {Edge.WW}


def test_g0_is_seen_in_registers() -> None:
    history = [
        t("a", Write("x", "a", at=1), Write("y", "a", at=4)),
        t("b", Write("x", "b", at=2), Write("y", "b", at=3)),
    ]
    assert kinds(check_registers(history)) == [Kind.G0]


def test_g1a_is_seen() -> None:
    gone = t("gone", Write("x", 1), ending=Ending.ABORTED)
    assert kinds(check_lists([gone, t("a", read("x", 1))])) == [Kind.G1A]
    assert kinds(check_registers([gone, t("a", Read("x", 1))])) == [Kind.G1A]


def test_g1a_is_seen_below_later_elements() -> None:
    gone = t("gone", Write("x", 1), ending=Ending.ABORTED)
    history = [gone, t("a", Write("x", 2)), t("b", read("x", 1, 2))]
    assert kinds(check_lists(history)) == [Kind.G1A]


def test_g1b_is_seen() -> None:
    writer = t("w", Write("x", 1), Write("x", 2))
    assert Kind.G1B in kinds(check_lists([writer, t("a", read("x", 1))]))
    assert Kind.G1B in kinds(check_registers([writer, t("a", Read("x", 1))]))


def test_g1c_is_seen() -> None:
    lists = [t("a", Write("x", 1), read("y", 1)), t("b", Write("y", 1), read("x", 1))]
    registers = [t("a", Write("x", 1), Read("y", 1)), t("b", Write("y", 1), Read("x", 1))]
    for found in one(check_lists(lists)), one(check_registers(registers)):
        assert found.kind is Kind.G1C
        assert edges(found) == {Edge.WR}


def test_a_lost_update_is_seen() -> None:
    history = [
        t("a", read("x"), Write("x", 1)),
        t("b", read("x"), Write("x", 2)),
        t("c", read("x", 2)),
    ]
    found = one(check_lists(history))
    assert found.kind is Kind.LOST_UPDATE
    assert sorted(found.names) == ["a", "b"]


def test_a_lost_update_is_seen_in_registers() -> None:
    for times in ((1, 2), (None, None)):
        history = [
            t(f"{at}", Read("x", None), Write("x", number, at=at))
            for number, at in enumerate(times)
        ]
        history = [
            Transaction(f"t{number}", each.events, 0, 9) for number, each in enumerate(history)
        ]
        assert kinds(check_registers(history)) == [Kind.LOST_UPDATE]


def test_g_single_is_seen() -> None:
    history = [t("w", Write("x", 1), Write("y", 1)), t("r", read("x", 1), read("y"))]
    found = one(check_lists(history))
    assert found.kind is Kind.G_SINGLE
    assert sorted(step.edge.value for step in found.cycle) == ["rw", "wr"]


def test_a_read_that_is_not_repeatable_is_g_single() -> None:
    history = [t("w", Write("x", 1)), t("r", read("x"), read("x", 1))]
    assert kinds(check_lists(history)) == [Kind.G_SINGLE]


def test_g2_item_is_seen() -> None:
    history = [t("a", read("x"), Write("y", 1)), t("b", read("y"), Write("x", 1))]
    found = one(check_lists([*history, t("c", read("x", 1), read("y", 1))]))
    assert found.kind is Kind.G2_ITEM
    assert [step.edge for step in found.cycle] == [Edge.RW, Edge.RW]


def test_a_long_fork_is_g2_item() -> None:
    history = [
        t("a", Write("x", 1)),
        t("b", Write("y", 1)),
        t("c", read("x", 1), read("y")),
        t("d", read("x"), read("y", 1)),
    ]
    assert kinds(check_lists(history)) == [Kind.G2_ITEM]


def test_g2_is_seen() -> None:
    history = [
        t("a", Missing("x", ()), Write("y", 1)),
        t("b", Missing("y", ()), Write("x", 1)),
        t("c", read("x", 1), read("y", 1)),
    ]
    found = one(check_lists(history))
    assert found.kind is Kind.G2
    assert edges(found) == {Edge.PRW}
    assert "b scanned, and did not find y, which a set to 1" in str(found)


def test_a_phantom_is_g_single() -> None:
    history = [t("w", Write("x", 1)), t("r", Missing("x", ()), read("x", 1))]
    assert kinds(check_lists(history)) == [Kind.G_SINGLE]


def test_a_key_that_a_scan_misses_is_a_real_time_violation() -> None:
    history = [t("a", Write("x", 1), at=(0, 10)), t("b", Missing("x", ()), at=(11, 20))]
    found = one(check_lists(history))
    assert found.kind is Kind.REAL_TIME
    assert edges(found) == {Edge.RT, Edge.PRW}


def test_a_stale_read_is_a_real_time_violation() -> None:
    history = [t("a", Write("x", 1), at=(0, 10)), t("b", read("x"), at=(11, 20))]
    found = one(check_lists(history))
    assert found.kind is Kind.REAL_TIME
    assert edges(found) == {Edge.RT, Edge.RW}


def test_a_lost_commit_is_a_real_time_violation() -> None:
    history = [
        t("a", Write("x", 1), at=(0, 10)),
        t("b", Write("x", 2), at=(11, 20)),
        t("c", read("x", 2), at=(21, 30)),
    ]
    assert kinds(check_lists(history)) == [Kind.REAL_TIME]


def test_a_deletion_that_is_missed_is_seen() -> None:
    found = check_registers(put_and_deleted(t("c", Read("x", "a", at=5), at=(31, 40))))
    assert kinds(found) == [Kind.REAL_TIME]


def test_nothing_is_seen_where_something_was() -> None:
    found = check_registers(put_and_deleted(t("c", Missing("x", None), at=(11, 19))))
    assert kinds(found) == [Kind.REAL_TIME]


def test_who_reads_a_deletion_comes_after_all_of_it() -> None:
    both = t("b", Deletion("x", "b", at=6), Write("y", "b", at=6), at=(20, 30))
    torn = t("c", Read("x", None), Read("y", None), at=(15, 40))
    history = [t("a", Write("x", "a", at=5), at=(0, 10)), both, torn]
    assert kinds(check_registers(history)) == [Kind.G_SINGLE]


def test_what_is_unknown_and_was_seen_is_bound_like_any_other() -> None:
    history = [
        t("u", Write("x", 1), Write("y", 1), at=(0, None), ending=Ending.UNKNOWN),
        t("r", read("x", 1), read("y"), at=(10, 20)),
    ]
    assert kinds(check_lists(history)) == [Kind.G_SINGLE]


def test_what_is_unknown_is_known_through_others_that_are() -> None:
    history = [
        t("u", Write("x", 1), Write("z", 1), at=(0, None), ending=Ending.UNKNOWN),
        t("v", read("x", 1), Write("y", 1), at=(1, None), ending=Ending.UNKNOWN),
        t("r", read("y", 1), read("z"), at=(10, 20)),
    ]
    assert kinds(check_lists(history)) == [Kind.G_SINGLE]


def test_what_nobody_wrote_is_seen() -> None:
    assert kinds(check_lists([t("a", read("x", 7))])) == [Kind.GARBAGE_READ]
    assert kinds(check_registers([t("a", Read("x", 7))])) == [Kind.GARBAGE_READ]


def test_an_element_that_is_there_twice_is_seen() -> None:
    assert kinds(check_lists([t("w", Write("x", 1)), t("a", read("x", 1, 1))])) == [Kind.DUPLICATE]


def test_lists_that_no_order_explains_are_seen() -> None:
    history = [
        t("a", Write("x", 1)),
        t("b", Write("x", 2)),
        t("c", read("x", 1, 2)),
        t("d", read("x", 2, 1)),
    ]
    assert Kind.INCOMPATIBLE_ORDER in kinds(check_lists(history))


def test_own_writes_that_are_not_seen_are_seen() -> None:
    assert kinds(check_lists([t("a", Write("x", 1), read("x"))])) == [Kind.INTERNAL]
    assert kinds(check_registers([t("a", Write("x", 1), Read("x", None))])) == [Kind.INTERNAL]


# --------------------------------------------------------------------------- what it tells


def test_the_shortest_cycle_is_told() -> None:
    chain = [t(f"c{i}", read("x", *range(i)), Write("x", i), at=(i, i + 1)) for i in range(100)]
    stale = t("stale", read("x", *range(50)), at=(60, 61))
    found = one(check_lists([*chain, stale]))
    assert found.kind is Kind.REAL_TIME
    assert len(found.cycle) == 2


def test_a_cycle_says_why_each_comes_before_the_next() -> None:
    history = [t("w", Write("x", 1), Write("y", 2)), t("r", read("x", 1), read("y"))]
    assert str(one(check_lists(history))).splitlines() == [
        "G-single: r < w < r",
        "  rw: r read nothing from y, not yet 2, which w wrote",
        "  wr: r read 1 from x, which w had written",
    ]


def test_each_group_of_transactions_is_told_once_and_as_its_worst() -> None:
    skewed = [t("a", read("x"), Write("y", 1)), t("b", read("y"), Write("x", 1))]
    crossed = [
        t("c", Write("p", 1), Write("q", 1)),
        t("d", Write("p", 2), Write("q", 2)),
        t("e", read("p", 1, 2), read("q", 2)),
        t("f", read("q", 2, 1)),
    ]
    found = kinds(check_lists([*skewed, *crossed]))
    assert set(found) == {Kind.G2_ITEM, Kind.G0}
    assert len(found) == 2


def serial(count: int, clients: int, rng: Random) -> list[Transaction]:
    lists: dict[str, list[int]] = {}
    history = []
    for i in range(count):
        keys = rng.sample([f"k{i * 20 // count}-{n}" for n in range(8)], 3)
        events: list[Read | Write] = [Read(key, tuple(lists.get(key, ()))) for key in keys]
        for key in keys[: rng.randint(0, 2)]:
            events.append(Write(key, i))
            lists.setdefault(key, []).append(i)
        early, late = (rng.randint(0, 10 * clients) for _ in range(2))
        ending = rng.choice([Ending.COMMITTED] * 9 + [Ending.UNKNOWN])
        history.append(t(f"t{i}", *events, at=(10 * i - early, 10 * i + late), ending=ending))
    return history


def test_thousands_of_transactions_are_checked_in_seconds() -> None:
    history = serial(6000, 8, Random(1))
    began_s = time.process_time()
    assert check_lists(history) == []
    assert time.process_time() - began_s < LONGEST_CPU_S


def test_one_bad_read_among_thousands_is_found() -> None:
    history = serial(6000, 8, Random(2))
    late = max(history, key=lambda each: each.start)
    key = next(event.key for event in history[100].events)
    stale = t("stale", Read(key, ()), at=(late.start + 1000, late.start + 1001))
    assert kinds(check_lists([*history, stale])) == [Kind.REAL_TIME]
