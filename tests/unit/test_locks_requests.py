"""Paths, modes, the order of requests, schedule, Hive's settings, and the names of lock nodes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn.clock import ManualClock
from txn.errors import InvalidRequestError
from txn.locks import Mode, Path, Waiting, exclusive, from_hive, path, shared
from txn.locks.model import LockRequest, in_order, parts_of
from txn.locks.queue import RetrySchedule, find_denial
from txn.locks.zookeeper.queues import Folders, Node, folder_name, parse_node

PARTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda part: part not in {".", ".."}
)
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: Path(tuple(parts)))
REQUESTS = st.lists(st.builds(LockRequest, PATHS, st.sampled_from(Mode)), max_size=8)


@given(PATHS)
def test_a_path_survives_its_text(at: Path) -> None:
    assert path(str(at)) == at
    assert str(at).count("/") == len(at.parts) - 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Sales", "sales"),
        ("SALES/Orders", "sales/orders"),
        ("Sales/Orders/Day=Mon/Place=A=B", "sales/orders/day=Mon/place=A=B"),
        ("d/t/Mon", "d/t/Mon"),  # a value, as there is no column
        ("%C3%84/T%2F", "%C3%A4/t%2F"),
    ],
)
def test_names_are_kept_in_lower_case_and_values_as_they_are(given: str, meant: str) -> None:
    assert str(path(given)) == meant
    assert path(given) == path(meant)
    assert path(given).parents == path(meant).parents


@pytest.mark.parametrize(
    "text", ["", "a//b", "/a", "a/", "a/../b", ".", "x" * 256, "/".join("a" * 33)]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        path(text)


@given(REQUESTS)
def test_requests_are_taken_in_one_order_with_their_parents(wanted: list[LockRequest]) -> None:
    found = in_order(wanted)
    objects = [request.path for request in found]
    assert objects == sorted(set(objects))
    modes = {request.path: request.mode for request in found}
    assert all(parent in modes for at in objects for parent in at.parents)
    exclusives = {request.path for request in wanted if request.mode is Mode.EXCLUSIVE}
    assert {at for at, mode in modes.items() if mode is Mode.EXCLUSIVE} == exclusives


def pauses(
    waiting: Waiting,
    clock: ManualClock,
    *,
    woken: bool = False,
    first_poll_ms: int | None = None,
    moves: int = 0,
) -> list[int]:
    schedule = RetrySchedule(waiting, clock, Random(1), first_poll_ms)
    found = []
    while (pause_ms := schedule.next_pause_ms()) is not None:
        found.append(pause_ms)
        if len(found) <= moves:
            schedule.note_move()
        clock.advance(1 if woken else pause_ms)
        if woken:
            schedule.note_wake()
    return found


def test_pauses_are_between_half_and_all_of_the_interval() -> None:
    found = pauses(Waiting(retries=50, pause_ms=1_000), ManualClock())
    assert len(found) == 50
    assert all(500 <= pause_ms <= 1_000 for pause_ms in found)
    assert len(set(found)) > 25
    timed = Waiting(retries=50, pause_ms=1_000, deadline_ms=2_500)
    assert sum(pauses(timed, ManualClock())) == 2_500


def test_a_pause_that_was_cut_short_is_no_retry() -> None:
    found = pauses(Waiting(retries=3, pause_ms=100), ManualClock(), woken=True)
    assert 300 <= len(found) <= 304


def test_whoever_is_not_told_looks_soon_and_then_less_often() -> None:
    waiting = Waiting(retries=3, pause_ms=1_000)
    found = pauses(waiting, ManualClock(), first_poll_ms=5)
    most_ms = (5, 10, 20, 40, 80)
    assert all(most / 2 <= pause_ms <= most for most, pause_ms in zip(most_ms, found, strict=False))
    assert len(found) < 15
    assert all(pause_ms >= 500 for pause_ms in found[-2:])
    assert 1_500 <= sum(found) <= 3_000


def test_looks_take_no_more_time_than_the_retries_that_they_divide() -> None:
    found = pauses(Waiting(retries=3, pause_ms=1_000), ManualClock(), first_poll_ms=5, moves=10_000)
    assert all(pause_ms <= 5 for pause_ms in found)
    assert 2_900 <= sum(found) <= 3_100


def test_settings_of_hive_are_understood() -> None:
    settings = {
        "hive.support.concurrency": "true",
        "hive.lock.numretries": "7",
        "hive.lock.sleep.between.retries": "2min",
        "hive.unlock.numretries": "3",
    }
    expected = Waiting(retries=7, pause_ms=120_000, unlock_retries=3, fairness="hive")
    assert from_hive(settings, Waiting(fairness="hive")) == expected
    assert not from_hive({"hive.support.concurrency": "FALSE"}).enabled
    assert from_hive({}) == Waiting()
    times = {"60s": 60_000, "500ms": 500, "60": 60_000, "1 h": 3_600_000, "5 SEC": 5_000}
    for text, pause_ms in times.items():
        assert from_hive({"hive.lock.sleep.between.retries": text}).pause_ms == pause_ms


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("hive.support.concurrency", "yes"),
        ("hive.lock.numretries", "-1"),
        ("hive.lock.sleep.between.retries", "soon"),
        ("hive.lock.sleep.between.retries", "0 parsecs"),
        ("hive.unlock.numretries", ""),
        ("hive.unlock.numretries", "9" * 5_000),
        ("hive.lock.retries", "7"),
        ("hive.lock.numretries", 7),
    ],
)
def test_a_setting_that_means_nothing_is_refused(setting: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"setting.*'{setting}'"):
        from_hive({setting: text})


def test_a_value_that_looks_like_a_lock_node_is_disguised() -> None:
    looks = f"write-{'0' * 32}-0000000001"
    assert parse_node(looks) is not None
    node = parse_node(f"read-{'0' * 32}--2147483648")  # its number has run over
    assert node is not None
    assert (node.number, node.mode) == (-(2**31), Mode.SHARED)
    assert parse_node(folder_name(looks)) is None
    assert parts_of(folder_name(looks)) == (looks,)


def test_folders_come_outer_ones_first_and_are_tidied_inner_ones_first() -> None:
    folders = Folders("/base/locks")
    needed = folders.all([path("d/t/p")])
    assert needed == ["/base", "/base/locks"] + [
        f"/base/locks/{at}" for at in ("d", "d/t", "d/t/p")
    ]
    assert folders.list_emptied([path("d/t")]) == ["/base/locks/d/t", "/base/locks/d"]


def test_those_before_deny_and_those_behind_do_not() -> None:
    """The recipe: a lower exclusive node denies all, a lower shared one denies exclusive."""
    assert {(one, two) for one in Mode for two in Mode if one.allows(two)} == {(Mode.SHARED,) * 2}
    at = path("d")
    line = [Node(i, mode, f"{i}", f"{i}") for i, mode in enumerate([Mode.SHARED] * 2)]
    line += [Node(2, Mode.EXCLUSIVE, "2", "2"), Node(3, Mode.SHARED, "3", "3")]
    assert find_denial({at: line}, "1", [shared(at)]) is None
    for_writer = find_denial({at: line}, "2", [exclusive(at)])
    assert for_writer is not None
    assert for_writer.blockers == tuple(line[:2])
    for_reader = find_denial({at: line}, "3", [shared(at)])
    assert for_reader is not None
    assert for_reader.blockers == (line[2],)
