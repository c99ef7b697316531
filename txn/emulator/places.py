"""Where HBase's clients are told that things are: tables by name, regions, and their one server."""

from __future__ import annotations

import hashlib
import re

from txn.tables.admin import Region
from txn.tables.refusal import Refused

CLUSTER = "00000000-0000-4000-8000-74786e2d7365"
HOST = "localhost"
PORT = 16020
DEFAULT_NAMESPACE = b"default"

_TABLE = re.compile(r"(?:\w+:)?\w[\w.-]*")


def check_table(name: bytes | None) -> bytes:
    """Return the name; refuse one that no table of HBase can have."""
    if not name or _TABLE.fullmatch(name.decode(errors="replace")) is None:
        raise Refused("illegal argument", "not a legal table name", table=name)
    return name


def region_name(table: bytes, region: Region) -> bytes:
    """Return the whole name of a region, in the form that HBase gives it."""
    name = b"%s,%s,%d" % (table, region.start, region.number)
    digest = hashlib.md5(name, usedforsecurity=False).hexdigest()
    return b"%s.%s." % (name, digest.encode())
