"""Long keys over short ones: the same map and the same order."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from txn.tables.kv import lmdb_transactions as layers
from txn.tables.kv.lmdb_transactions import SLICE


class Short:
    """A map that refuses keys above LMDB's 511 bytes, with long ones on top."""

    def __init__(self) -> None:
        self.map: SortedDict = SortedDict()

    def put(self, key: bytes, value: bytes) -> None:
        self._set(layers.make_layers(self.map.get, self._set, key), value)

    def get(self, key: bytes) -> bytes | None:
        stored = layers.find_value(self.map.get, key)
        return None if stored is None else self.map.get(stored)

    def delete(self, key: bytes) -> None:
        layers.remove_key(self.map.get, lambda stored: self.map.pop(stored, None), self.seek, key)

    def keys(self, start: bytes, stop: bytes) -> list[bytes]:
        return list(layers.merge_keys(self.map.get, self.seek, start, stop))

    def before(self, key: bytes) -> bytes | None:
        def seek_back(stop: bytes) -> bytes | None:
            found = self.map.irange(maximum=stop, inclusive=(True, False), reverse=True)
            return next(found, None)

        return layers.find_before(self.map.get, seek_back, key)

    def seek(self, start: bytes) -> Iterator[bytes]:
        return iter(self.map.irange(start))

    def _set(self, key: bytes, value: bytes) -> None:
        assert 0 < len(key) <= 511
        self.map[key] = value


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
    """HBase's rows are in byte order, however long they are."""
    short, plain = Short(), {}
    for count, (key, is_put) in enumerate(steps):
        if is_put:
            short.put(key, b"%d" % count)
            plain[key] = b"%d" % count
        else:
            short.delete(key)
            plain.pop(key, None)
    assert {key: short.get(key) for key, _ in steps} == {key: plain.get(key) for key, _ in steps}
    assert short.keys(start, stop) == sorted(key for key in plain if start <= key < stop)
    assert short.keys(b"", b"\xff") == sorted(plain)
    for key in (start, stop, *plain):
        assert short.before(key) == max((one for one in plain if one < key), default=None)


def test_a_short_key_is_stored_as_it_is() -> None:
    """The usual case must cost nothing."""
    short = Short()
    short.put(b"k" * SLICE, b"1")
    assert list(short.map) == [b"k" * SLICE]


def test_removing_the_last_long_key_leaves_no_layer() -> None:
    """Otherwise rows that come and go would fill the store with empty layers."""
    short = Short()
    keys = [b"k" * 3000, b"k" * 2000, b"k" * 2000 + b"z"]
    for key in keys:
        short.put(key, b"1")
    for key in keys:
        short.delete(key)
    assert [key for key in short.map if not key.startswith(b"\xff" + bytes(8))] == []


def test_a_start_beyond_a_slice_skips_the_key_of_that_slice() -> None:
    """The whole key of the slice is stored beside the pointer, and sorts before the start."""
    short = Short()
    keys = [b"k" * SLICE, b"k" * (SLICE + 1), b"k" * (SLICE + 2)]
    for key in keys:
        short.put(key, b"1")
    assert [short.keys(key, b"\xff") for key in keys] == [keys, keys[1:], keys[2:]]
