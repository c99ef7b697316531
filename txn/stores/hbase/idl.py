"""HBase's Thrift 2 service, for clients and for our servers."""

from __future__ import annotations

from importlib.resources import files
from io import StringIO
from types import ModuleType

import thriftpy2

IDL: ModuleType = thriftpy2.load_fp(
    StringIO(files(__package__).joinpath("hbase2.thrift").read_text()), "txn_hbase2_thrift"
)
