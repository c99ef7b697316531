"""The bytes of a transaction row, its key and a lock cell: nothing is lost, and nothing guessed."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_assertions import trees
from tests.unit.worlds import World, X
from txn.client.measured import MeasuredStore
from txn.errors import CorruptRowError, InvalidRequestError
from txn.events import silent
from txn.model import Cell, Delete, Key, Mutation, Row
from txn.protocol import codec as codec_module
from txn.protocol import row as row_module
from txn.protocol.codec import Buffer, Plan, decode_buffer, decode_plan, encode_buffer, encode_plan
from txn.protocol.context import Context
from txn.protocol.locks import NAMED, FencedLock, holder_of, read_lock
from txn.protocol.row import FREE, is_row_key, make_row_key, new_row_key
from txn.request import Request, lock_request
from txn.stores.base import Store
from txn.testing.counting import CountingStore

part = st.binary(min_size=1, max_size=20)
columns = part.filter(lambda column: not column.endswith((b"_lock", b"_tag")))
mutations = st.builds(Key, part, part, columns, part).flatmap(
    lambda key: st.one_of(st.just(Delete(key)), st.builds(Mutation, st.just(key), part))
)
buffers = st.builds(
    Buffer,
    st.builds(
        Request,
        st.lists(mutations, max_size=4, unique_by=lambda each: each.key).map(tuple),
        st.lists(trees, max_size=3).map(tuple),
        st.none() | part,
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    ),
    st.integers(1, 2**40),
)
ROW_KEY = row_module.new_row_key(1_700_000_000_000, 7)


@given(buffers)
def test_a_buffer_survives_its_bytes(buffer: Buffer) -> None:
    assert decode_buffer(encode_buffer(buffer.request, buffer.lock_ttl_ms)) == buffer


@given(st.integers(1, 2**62), st.lists(st.integers(0, 2**62), max_size=5).map(tuple))
def test_a_plan_survives_its_bytes(timestamp: int, replaced: tuple[int, ...]) -> None:
    assert decode_plan(encode_plan(Plan(timestamp, replaced))) == Plan(timestamp, replaced)


@pytest.mark.parametrize("plan", [Plan(0, ()), Plan(-1, ()), Plan(2**63, ()), Plan(9, (-1,))])
def test_a_plan_of_timestamps_that_are_none_does_not_decode(plan: Plan) -> None:
    with pytest.raises(CorruptRowError):
        decode_plan(encode_plan(plan))


@given(buffers, st.data())
def test_one_flipped_bit_and_each_cut_is_noticed(buffer: Buffer, data: st.DataObject) -> None:
    encoded = bytearray(encode_buffer(buffer.request, buffer.lock_ttl_ms))
    place = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptRowError, match=r"cut short|checksum"):
        decode_buffer(bytes(encoded[:place]))
    encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRowError):
        decode_buffer(bytes(encoded))


def framed(body: object) -> bytes:
    return codec_module._frame(body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [
        *(7, [], [[], [], None, 1], [[[1]], [], None, 1, {}], [[], [["other", 1]], None, 1, {}]),
        *([[{"a": 1}], [], None, 1, {}], [[], [], None, b"1", {}], [[], [], None, 1, 7]),
        *([[], [], None, 1, {}, False], [[], [], None, 1, {}, True, True]),
        *([[], [], None, 1, {}, 1, "a"], [[], [], None, 1, {}, True, ""]),
        *([[], [], None, 1, {}, True, "a" * 1025], [[], [], None, 1, {}, True, "a", "a"]),
    ],
)
def test_bodies_of_another_shape_are_noticed(body: object) -> None:
    with pytest.raises(CorruptRowError, match="buffer has an unknown shape"):
        decode_buffer(framed(body))


def test_a_buffer_says_whether_it_validates() -> None:
    for validate in (True, None, False):
        kept = decode_buffer(encode_buffer(Request((), validate=validate), 1)).request.validate
        assert kept is (True if validate else None)


@pytest.mark.parametrize(
    "body", [[1], [1, b"23"], [1, [b"2"]], ["1", []], [1, [2], [2**63]], [1, [2], b"3"]]
)
def test_a_plan_of_another_shape_is_noticed(body: object) -> None:
    with pytest.raises(CorruptRowError, match="plan has an unknown shape"):
        decode_plan(framed(body))


def test_bodies_that_are_not_msgpack_or_of_a_newer_format_are_named() -> None:
    body = b"\xc1"  # the one byte that msgpack never uses
    with pytest.raises(CorruptRowError, match="not msgpack"):
        decode_plan(b"\x01" + zlib.crc32(body).to_bytes(4, "big") + body)

    encoded = b"\x02" + encode_plan(Plan(5, ()))[1:]
    with pytest.raises(CorruptRowError, match=r"unknown format version=2 known=1"):
        decode_plan(encoded)


def test_a_buffer_larger_than_a_cell_is_refused() -> None:
    values = [Mutation(Key("a", "d", f"x{i}", "t"), b"v" * 6_000_000) for i in range(2)]
    with pytest.raises(InvalidRequestError, match=r"too large for one cell.*limit=10485504"):
        encode_buffer(Request(tuple(values)), 1)


def test_row_keys_tell_their_time_and_buckets_prefix_them() -> None:
    assert ROW_KEY == b"transaction.1700000000000.00000000000000000000000000000007"
    assert row_module.is_row_key(ROW_KEY)
    assert row_module.created_ms(ROW_KEY) == 1_700_000_000_000
    assert row_module.new_row_key(1, 23, 10).startswith(b"03.transaction.")
    assert row_module.created_ms(row_module.new_row_key(1, 23, 10)) == 1


@pytest.mark.parametrize(
    "row", [b"", b"once.t", b"transaction.1.2", ROW_KEY + b"0", b"3." + ROW_KEY]
)
def test_other_rows_are_not_transactions(row: bytes) -> None:
    assert not row_module.is_row_key(row)
    with pytest.raises(InvalidRequestError, match="not a transaction row key"):
        row_module.created_ms(row)


def row_of(**cells: tuple[bytes, int]) -> Row:
    keys = {
        name: row_module.column(b"txn", ROW_KEY, name.replace("__", ".").encode()) for name in cells
    }
    return Row(ROW_KEY, {keys[name]: Cell(*cell) for name, cell in cells.items()})


def test_an_absent_row_has_nothing_and_a_damaged_one_says_what_is_damaged() -> None:
    row = row_module.decode_row(Row(ROW_KEY, {}))
    assert (row.status, row.buffer, row.corrupt) == (None, None, None)
    assert row_module.decode_row(row_of(status=(b"", 5))).status is None

    row = row_module.decode_row(row_of(status=(b"9-NEW", 7), buffer=(b"\x01ju", 3), plan=(b"", 7)))
    assert row.status is None and row.buffer is None and row.plan is None
    assert row.corrupt is not None
    for what in ("unknown status", "buffer is cut short", "plan is cut short"):
        assert what in row.corrupt


def test_a_unit_may_be_asserted_but_not_changed() -> None:
    unit = Key(b"r", b"d", b"", b"t")
    locked = lock_request([unit])
    assert decode_buffer(encode_buffer(locked, 1)).request == locked
    with pytest.raises(CorruptRowError, match="column is empty"):
        decode_buffer(encode_buffer(Request((Mutation(unit, b"v"),)), 1))


BUCKETS = 8
KEYS = [Key(row, "d", "x", "data") for row in ("a1", "a2", "b1")]


class Located(CountingStore):
    """A store that knows the servers of some rows, by what they begin with."""

    def __init__(self, inner: Store, servers: dict[bytes, str]) -> None:
        super().__init__(inner)
        self.servers = servers

    def find_server(self, table: bytes, row: bytes) -> object | None:
        found = [server for start, server in self.servers.items() if row.startswith(start)]
        return found[0] if found else None


def context_of(servers: dict[bytes, str], salt_buckets: int = BUCKETS) -> Context:
    world = World(salt_buckets=salt_buckets)
    store = MeasuredStore(CountingStore(Located(world.store, servers)), silent)
    return replace(world.engine.context, store=store)


def count_buckets(context: Context) -> Counter[int]:
    """Return how many of a thousand transactions begin in each bucket."""
    rng, found = Random(1), Counter[int]()
    for _ in range(1_000):
        row_key = make_row_key(context, rng.getrandbits(128), lock_request(KEYS))
        assert is_row_key(row_key)
        found[int(row_key[:2])] += 1
    return found


def spread(servers: str) -> dict[bytes, str]:
    """Return the servers of the buckets, and of the keys: most of them are on A."""
    buckets = {b"%02d." % bucket: server for bucket, server in enumerate(servers)}
    return {**buckets, b"a": "A", b"b": "B"}


def test_a_transaction_begins_on_the_server_of_most_of_its_keys() -> None:
    found = count_buckets(context_of(spread("ABCAABCB")))
    assert sum(found[near] for near in (0, 3, 4)) > 990
    assert min(found[near] for near in (0, 3, 4)) > 250


def test_a_bucket_of_an_unknown_server_is_used_too() -> None:
    """It is known once it was used. Otherwise the first known one would take everything."""
    servers = spread("ABBBBBBB")
    del servers[b"07."]
    found = count_buckets(context_of(servers))
    assert min(found[bucket] for bucket in (0, 7)) > 400


@pytest.mark.parametrize("servers", [spread("BBBBBBBB"), {}, {b"0": "A"}])
def test_where_no_bucket_is_near_all_are_used(servers: dict[bytes, str]) -> None:
    assert min(count_buckets(context_of(servers)).values()) > 80


def test_without_buckets_or_servers_a_row_key_is_as_ever() -> None:
    for context in (context_of(spread("A"), 1), World(salt_buckets=BUCKETS).engine.context):
        count = context.salt_buckets
        expected = new_row_key(context.clock.wall_ms(), 5, count, context.table)
        assert make_row_key(context, 5, lock_request(KEYS)) == expected


LOCK = X.row_lock
NAME = new_row_key(1, 1)


def says(value: bytes) -> Cell:
    return Cell(value, 7)


def test_what_is_written_is_read() -> None:
    for names in (b"", b"0123abcd", b"-,-,0123abcd"):
        lock = FencedLock(12, FREE, names)
        held = says(lock.take(b"T1@home"))
        assert read_lock(LOCK, held) == FencedLock(13, b"T1@home", names)
        assert holder_of(LOCK, held) == b"T1@home"
        free = says(read_lock(LOCK, held).undo_take())
        assert (read_lock(LOCK, free), holder_of(LOCK, free)) == (lock, FREE)


def test_names_move_up_with_each_acquisition() -> None:
    free = FencedLock().commit_single(b"transaction.1.aaaaaaaa")
    assert free == b"1 aaaaaaaa"
    lock = read_lock(LOCK, says(read_lock(LOCK, says(free)).take(b"T")))
    assert lock == FencedLock(2, b"T", b"aaaaaaaa")
    assert lock.give_back() == b"2 -,aaaaaaaa"
    assert FencedLock(1, b"T").give_back() == b"1"
    for _ in range(NAMED):
        assert lock.was_taken_by(b"aaaaaaaa", 1) is True
        free = lock.give_back()
        lock = read_lock(LOCK, says(read_lock(LOCK, says(free)).take(b"T")))
    assert lock.was_taken_by(b"aaaaaaaa", 1) is None
    assert lock.names == b""


@pytest.mark.parametrize("cell", [None, says(b"")], ids=["absent", "empty"])
def test_a_lock_that_was_never_taken_is_free(cell: Cell | None) -> None:
    assert (holder_of(LOCK, cell), read_lock(LOCK, cell)) == (FREE, FencedLock())


@pytest.mark.parametrize("value", [NAME, b"@T1", b"012", b"-1", b"1@", b"1" * 20, b"\xff"])
def test_what_no_lock_says_is_held_by_nobody_known(value: bytes) -> None:
    assert not is_row_key(holder_of(LOCK, says(value)))
    with pytest.raises(CorruptRowError, match="not a lock of the fenced protocol") as error:
        read_lock(LOCK, says(value))
    assert repr(value) not in str(error.value)  # it may be a value of somebody's


def test_a_lock_of_six_phases_is_its_holder() -> None:
    assert holder_of(X.lock, says(b"3@T1")) == b"3@T1"
    assert holder_of(X.lock, None) == FREE
