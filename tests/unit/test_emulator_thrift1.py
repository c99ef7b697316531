"""The emulator's Thrift 1 service, called without a connection."""

from __future__ import annotations

import pytest

from txn.clock import ManualClock
from txn.emulator.thrift1 import IDL, handler
from txn.tables.kv.memory import MemoryStore

pytestmark = pytest.mark.fast


def test_a_compaction_of_a_disabled_table_is_refused_as_hbase_refuses_it() -> None:
    service = handler(MemoryStore(), ManualClock())
    service.createTable(b"t", [IDL.ColumnDescriptor(name=b"d:")])
    service.disableTable(b"t")
    with pytest.raises(IDL.IOError, match="TableNotEnabledException"):
        service.majorCompact(b"t")
