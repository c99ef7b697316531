"""Long keys over short ones: the same map and the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import lmdb
from hypothesis import given
from hypothesis import strategies as st

from txn.tables.kv.lmdb_transactions import SLICE, GatheringWriter, LmdbWriter


@contextmanager
def opened() -> Iterator[tuple[LmdbWriter, lmdb.Transaction[bytes]]]:
    """A writer on an empty LMDB, which refuses keys above 511 bytes, and its transaction."""
    with (
        TemporaryDirectory() as folder,
        lmdb.Environment(folder, sync=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        yield LmdbWriter(transaction), transaction


def list_stored(transaction: lmdb.Transaction[bytes]) -> list[bytes]:
    return list(transaction.cursor().iternext(keys=True, values=False))


def long_key(parts: list[tuple[int, int]], tail: bytes) -> bytes:
    """A key of runs of a byte, so that shared slices and slice edges are met often."""
    return b"".join(bytes([byte]) * count for byte, count in parts)[: 3 * SLICE + 2] + tail


RUNS = st.tuples(
    st.sampled_from([0, 1, 97, 254]), st.sampled_from([0, 1, 2, 245, 488, 489, 490, 491, 980])
)
KEYS = st.builds(long_key, st.lists(RUNS, max_size=3), st.binary(max_size=2)).filter(
    lambda key: len(key) > 0 and key[0] < 255
)


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=25), KEYS, KEYS)
def test_any_keys_are_found_and_ordered_as_in_a_plain_map(
    steps: list[tuple[bytes, bool]], start: bytes, stop: bytes
) -> None:
    plain: dict[bytes, bytes] = {}
    with opened() as (long, _):
        for count, (key, is_put) in enumerate(steps):
            if is_put:
                long.put(key, b"%d" % count)
                plain[key] = b"%d" % count
            else:
                long.delete(key)
                plain.pop(key, None)
        assert {key: long.get(key) for key, _ in steps} == {key: plain.get(key) for key, _ in steps}
        found = list(long.keys(start, stop))
        assert found == sorted(key for key in plain if start <= key < stop)
        assert list(long.keys(b"", b"\xff")) == sorted(plain)
        for key in (start, stop, *plain):
            assert long.before(key) == max((one for one in plain if one < key), default=None)


@given(st.lists(st.dictionaries(KEYS, st.binary(max_size=2)), max_size=3), st.booleans())
def test_values_put_together_are_found_as_if_put_one_by_one(
    calls: list[dict[bytes, bytes]], is_shared: bool
) -> None:
    plain: dict[bytes, bytes] = {}
    with opened() as (long, _):
        writer = GatheringWriter(long) if is_shared else long
        for items in calls:
            writer.put_all(items)
            plain |= items
            assert {key: writer.get(key) for key in plain} == plain
        assert list(writer.items(b"", b"\xff")) == sorted(plain.items())


def test_a_short_key_is_stored_as_it_is() -> None:
    with opened() as (long, transaction):
        long.put(b"k" * SLICE, b"1")
        assert list_stored(transaction) == [b"k" * SLICE]


def test_removing_the_last_long_key_leaves_no_layer() -> None:
    keys = [b"k" * 3000, b"k" * 2000, b"k" * 2000 + b"z"]
    with opened() as (long, transaction):
        for key in keys:
            long.put(key, b"1")
        for key in keys:
            long.delete(key)
        left = [key for key in list_stored(transaction) if not key.startswith(b"\xff" + bytes(8))]
        assert left == []
