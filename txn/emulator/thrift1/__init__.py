"""HBase's Thrift 1 service."""

from pathlib import Path
from types import ModuleType

import thriftpy2

IDL: ModuleType = thriftpy2.load(
    str(Path(__file__).with_name("hbase1.thrift")), module_name="txn_emulator_hbase1_thrift"
)
