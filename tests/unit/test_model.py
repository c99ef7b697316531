"""Keys, values and cells: what they accept, and what they refuse before anything is written."""

from __future__ import annotations

import pickle

import pytest

from txn.errors import InvalidRequestError
from txn.model import (
    KEEP_DELETES_MS,
    MAX_CELL,
    MAX_ROW,
    Check,
    Delete,
    Edit,
    Family,
    Key,
    Mutation,
    cell_bytes,
    check_count,
    check_key,
    check_targets,
    check_value,
    find_delete_refusal,
    find_refusal,
)


def test_text_and_what_is_like_bytes_become_bytes() -> None:
    assert Key("é", "d", "x", "t") == Key("é".encode(), b"d", b"x", b"t")
    assert Mutation(Key("a", "d", "x"), "90").value == b"90"
    assert Key(bytearray(b"a"), memoryview(b"d"), b"x") == Key("a", "d", "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [None, 7, 1.5, ["a"]])
def test_other_types_are_refused_by_name(part: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"row must be bytes or str.*type="):
        Key(part, "d", "x")  # type: ignore[arg-type]


def test_a_key_prints_as_it_is_written_and_can_be_sent() -> None:
    for key in (Key("a", "d", "x"), Key("a", "d", "x", "t")):
        assert eval(repr(key)) == key
        for each in (key, Delete(key), Mutation(key, "1")):
            assert pickle.loads(pickle.dumps(each)) == each


@pytest.mark.parametrize("column", ["x_lock", "x_tag", "_lock", "_tag"])
def test_reserved_columns_are_refused(column: str) -> None:
    with pytest.raises(InvalidRequestError, match="reserved"):
        check_key(Key("a", "d", column))


@pytest.mark.parametrize("place", range(4))
def test_empty_and_oversized_parts_are_refused(place: int) -> None:
    longest = (MAX_ROW, 127, 32_767, 255)[place]
    for part in ("", "x" * (longest + 1)):
        parts = ["a", "d", "x", "t"]
        parts[place] = part
        with pytest.raises(InvalidRequestError, match=r"is empty|is too long.*limit="):
            check_key(Key(*parts))


def test_the_largest_key_and_value_are_accepted() -> None:
    key = Key("a" * MAX_ROW, "d", "x", "t")
    check_key(key)
    check_value(key, b"v" * (MAX_CELL - cell_bytes(key, b"")))


@pytest.mark.parametrize(
    ("value", "message"),
    [(b"", "empty"), (b"v" * MAX_CELL, "too large.*limit=10485760"), ("text", "bytes")],
)
def test_values_that_no_cell_can_hold_are_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_value(Key("a", "d", "x"), value)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (Family(), None),
        (Family(ttl_ms=1), "TTL"),
        (Family(new_version_behavior=True), "NEW_VERSION_BEHAVIOR"),
        (Family(durability="ASYNC_WAL"), "ASYNC_WAL"),
    ],
)
def test_families_that_break_the_protocol_are_refused(family: Family, reason: str | None) -> None:
    refused = find_refusal(family)
    assert (reason is None) is (refused is None)
    assert reason is None or (refused is not None and reason in refused)


@pytest.mark.parametrize(
    ("keep_deletes_ms", "refused"),
    [(None, False), (KEEP_DELETES_MS, False), (KEEP_DELETES_MS - 1, True), (0, True)],
)
def test_deletes_need_markers_that_are_kept(keep_deletes_ms: int | None, refused: bool) -> None:
    assert (find_delete_refusal(Family(keep_deletes_ms=keep_deletes_ms)) is not None) is refused


def test_a_checked_write_is_of_its_own_row() -> None:
    places = (("r", "x_lock"), ("r", "x_tag"), ("s", "x_lock"))
    lock, tag, elsewhere = (Key(row, "d", column, "t") for row, column in places)
    put, delete = Check(lock, b"", ((tag, b"1"),)), Check(lock, b"me", edits=(Edit(tag, None, 5),))
    for check in (put, delete):
        check_targets(check)
        assert check.targets == [tag]
    strange = (
        put._replace(puts=((elsewhere, b"1"),)),
        delete._replace(edits=(Edit(elsewhere, None, 5),)),
    )
    for check in strange:
        with pytest.raises(InvalidRequestError, match="one row"):
            check_targets(check)


def test_a_number_of_versions_that_hbase_cannot_be_asked_for_is_refused() -> None:
    for count in (0, -1, 1 << 31):
        with pytest.raises(InvalidRequestError, match=f"count={count}"):
            check_count(count)
    for count in (1, (1 << 31) - 1):
        check_count(count)
