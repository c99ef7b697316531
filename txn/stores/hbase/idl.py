"""HBase's Thrift 2 service, for clients and for our servers."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import thriftpy2

IDL: ModuleType = thriftpy2.load(
    str(Path(__file__).with_name("hbase2.thrift")), module_name="txn_hbase2_thrift"
)
