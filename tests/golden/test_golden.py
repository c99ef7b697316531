"""Transaction rows that a release has written stay readable for ever."""

from __future__ import annotations

import pytest

from tests.golden.generate import BUFFERS, FOLDER, PLANS, files
from txn.errors import CorruptRowError
from txn.model import Cell, Row
from txn.protocol.codec import decode_buffer, decode_marker, decode_plan, encode_marker
from txn.protocol.row import FAMILY, RowState, column, decode_row, is_row_key
from txn.protocol.statuses import Status

pytestmark = pytest.mark.fast
FORMAT1 = FOLDER.parent / "format1"
ROW_KEYS = (
    b"transaction.1790000000000.00112233445566778899aabbccddeeff",
    b"07.transaction.1790000000000.00112233445566778899aabbccddeeff",
)


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_of_format_1_is_read_as_it_was_meant(name: str) -> None:
    found = decode_buffer((FORMAT1 / f"{name}.buffer").read_bytes())
    assert (found, found.owner) == (BUFFERS[name], BUFFERS[name].owner)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_of_format_1_is_read_as_it_was_meant(name: str) -> None:
    assert decode_plan((FORMAT1 / f"{name}.plan").read_bytes()) == PLANS[name]


def test_the_current_code_writes_the_golden_bytes() -> None:
    """A change of the bytes is a change of the format, and needs a new number."""
    for name, content in files().items():
        assert (FOLDER / name).read_bytes() == content, name


def test_every_golden_file_is_tested() -> None:
    assert {path.name for path in FORMAT1.iterdir()} == set(files())


@pytest.mark.parametrize("row_key", ROW_KEYS)
def test_a_row_of_format_1_is_a_decided_transaction(row_key: bytes) -> None:
    content = {
        b"status": b"2-ASSERTED",
        b"buffer": (FORMAT1 / "transfer.buffer").read_bytes(),
        b"plan": (FORMAT1 / "new-and-old.plan").read_bytes(),
        b"at.1-LOCKED": b"",
    }
    cells = {column(b"txn", row_key, name): Cell(value, 7) for name, value in content.items()}
    row = decode_row(Row(row_key, cells))
    assert is_row_key(row_key)
    assert (row.status, row.corrupt, FAMILY) == (Status.ASSERTED, None, b"t")
    assert row.began == {Status.LOCKED: 7}
    assert row.state is RowState.UNREADABLE  # the plan is of another buffer, and that is seen


@pytest.mark.parametrize("name", sorted(files()))
@pytest.mark.parametrize("damage", ["first", "last", "cut", "empty"])
def test_damage_is_seen(name: str, damage: str) -> None:
    whole = (FORMAT1 / name).read_bytes()
    damaged = {
        "first": bytes([whole[0] ^ 1]) + whole[1:],
        "last": whole[:-1] + bytes([whole[-1] ^ 1]),
        "cut": whole[:-1],
        "empty": b"",
    }[damage]
    with pytest.raises(CorruptRowError):
        (decode_buffer if name.endswith(".buffer") else decode_plan)(damaged)


@pytest.mark.parametrize(
    ("value", "promise_ms"), [(ROW_KEYS[0], None), (ROW_KEYS[1], None), (ROW_KEYS[1] + b" 1", 1)]
)
def test_a_marker_of_format_1_names_its_transaction(value: bytes, promise_ms: int | None) -> None:
    marker = decode_marker(value)
    assert (is_row_key(marker.transaction), marker.retention_ms) == (True, promise_ms)
    assert encode_marker(marker) == value
