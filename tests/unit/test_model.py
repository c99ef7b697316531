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


def test_text_becomes_utf8() -> None:
    """Users write text, HBase keeps bytes; both spellings must name the same cell."""
    assert Key("é", "d", "x", "t") == Key("é".encode(), b"d", b"x", b"t")
    assert Mutation(Key("a", "d", "x"), "90").value == b"90"


def test_bytes_like_parts_become_bytes() -> None:
    """Drivers hand out bytearrays and memoryviews, which cannot be hashed."""
    assert Key(bytearray(b"a"), memoryview(b"d"), b"x") == Key("a", "d", "x")


@pytest.mark.parametrize("part", [None, 7, 1.5, ["a"]])
def test_other_types_are_refused_by_name(part: object) -> None:
    """A number as a row key is a mistake that must not become the text of it."""
    with pytest.raises(InvalidRequestError, match=r"row must be bytes or str.*type="):
        Key(part, "d", "x")  # type: ignore[arg-type]


def test_lock_and_tag_stand_beside_the_cell() -> None:
    """The protocol's cells are in the row and family of what they protect."""
    key = Key("a", "d", "x", "t")
    assert key.lock == Key("a", "d", "x_lock", "t")
    assert key.tag == Key("a", "d", "x_tag", "t")


def test_keys_can_be_sent_to_other_processes() -> None:
    """Spark pickles what a closure holds."""
    key = Key("a", "d", "x", "t")
    assert pickle.loads(pickle.dumps(key)) == key
    assert pickle.loads(pickle.dumps(Delete(key))) == Delete(key)
    assert pickle.loads(pickle.dumps(Mutation(key, "1"))) == Mutation(key, b"1")


def test_keys_order_by_row_first() -> None:
    """Ordered locking needs one total order, the same for every client."""
    assert Key("a", "z", "z", "z") < Key("b", "a", "a", "a")


def test_a_key_prints_as_it_is_written() -> None:
    """Errors show keys; a person must be able to paste them."""
    for key in (Key("a", "d", "x"), Key("a", "d", "x", "t")):
        assert eval(repr(key)) == key


@pytest.mark.parametrize("column", ["x_lock", "x_tag", "_lock", "_tag"])
def test_reserved_columns_are_refused(column: str) -> None:
    """A user's write to a lock cell would free or fake a lock."""
    with pytest.raises(InvalidRequestError, match="reserved"):
        check_key(Key("a", "d", column))


@pytest.mark.parametrize(
    "key",
    [
        Key("", "d", "x"),
        Key("a", "", "x"),
        Key("a", "d", ""),
        Key("a", "d", "x", ""),
        Key("a" * (MAX_ROW + 1), "d", "x"),
        Key("a", "d" * 128, "x"),
        Key("a", "d", "x" * 32_768),
        Key("a", "d", "x", "t" * 256),
    ],
)
def test_empty_and_oversized_parts_are_refused(key: Key) -> None:
    """HBase's own limits, told before anything is written rather than by a failing put."""
    with pytest.raises(InvalidRequestError, match=r"is empty|is too long.*limit="):
        check_key(key)


def test_what_is_no_key_is_refused() -> None:
    """A plain tuple has the right shape and none of the checks."""
    with pytest.raises(InvalidRequestError, match="not a Key"):
        check_key((b"a", b"d", b"x", None))


def test_the_largest_key_and_value_are_accepted() -> None:
    """The limits are inclusive, as HBase's are."""
    key = Key("a" * MAX_ROW, "d", "x", "t")
    check_key(key)
    check_value(key, b"v" * (MAX_CELL - cell_bytes(key, b"")))


@pytest.mark.parametrize(
    ("value", "message"),
    [(b"", "empty"), (b"v" * MAX_CELL, "too large.*limit=10485760"), ("text", "bytes")],
)
def test_values_that_no_cell_can_hold_are_refused(value: object, message: str) -> None:
    """An empty value cannot be told from none in HBase's checked writes."""
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
    """Each of these would lose a lock, a delete or a decision without a word."""
    refused = find_refusal(family)
    assert (reason is None) is (refused is None)
    assert reason is None or (refused is not None and reason in refused)


@pytest.mark.parametrize(
    ("keep_deletes_ms", "refused"),
    [(None, False), (KEEP_DELETES_MS, False), (KEEP_DELETES_MS - 1, True), (0, True)],
)
def test_deletes_need_markers_that_are_kept(keep_deletes_ms: int | None, refused: bool) -> None:
    """Once a marker is purged, a late duplicate of an older put would bring its value back."""
    assert (find_delete_refusal(Family(keep_deletes_ms=keep_deletes_ms)) is not None) is refused


def test_a_checked_write_is_of_its_own_row() -> None:
    """Another row's cell could not be written in one step."""
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


@pytest.mark.parametrize("count", [0, -1, 1 << 31])
def test_a_number_of_versions_that_hbase_cannot_be_asked_for_is_refused(count: int) -> None:
    """A gateway has 32 bits for it, and takes 0 for something of its own."""
    with pytest.raises(InvalidRequestError, match=f"count={count}"):
        check_count(count)


@pytest.mark.parametrize("count", [1, (1 << 31) - 1])
def test_any_other_number_of_versions_is_taken(count: int) -> None:
    """Both ends belong to it."""
    check_count(count)
