"""Keys with their values in one walk: the same as by `keys` and `get`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_tables_layers import KEYS
from txn.tables.kv.lmdb import LmdbStore
from txn.tables.kv.memory import MemoryStore
from txn.tables.kv.ordered import OrderedStore, Reader, Writer


@pytest.fixture(scope="module", params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OrderedStore:
    if request.param == "memory":
        return MemoryStore()
    return LmdbStore(str(tmp_path_factory.mktemp("items") / "store"), sync=False)


@given(wanted=st.sets(KEYS, max_size=12), start=KEYS, stop=KEYS)
def test_items_are_the_keys_with_their_values(
    store: OrderedStore, wanted: set[bytes], start: bytes, stop: bytes
) -> None:
    def fill(writer: Writer) -> None:
        for key in [*writer.keys(b"", b"\xff")]:
            writer.delete(key)
        for number, key in enumerate(sorted(wanted)):
            writer.put(key, b"%d" % number)

    def look(reader: Reader) -> None:
        for low, high in ((start, stop), (b"", b"\xff"), (start, b"\xff"), (b"", stop)):
            expected = [(key, reader.get(key)) for key in reader.keys(low, high)]
            assert list(reader.items(low, high)) == expected

    store.write(fill)
    store.read(look)
