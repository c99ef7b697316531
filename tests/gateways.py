"""A real HBase for the tests: one that runs already, or one that is started for this run.

The variable TXN_TEST_HBASE may name both gateways of a running one, thrift1 before thrift2:
`hbase+thrift1://host:port,hbase+thrift2://host:port`. Workers of one run share what is started.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from txn.cluster.cluster import open_cluster, start
from txn.cluster.settings import Settings

VARIABLE = "TXN_TEST_HBASE"


class Gateways(NamedTuple):
    """The stores behind both gateways of one HBase."""

    thrift1: str
    thrift2: str


@contextmanager
def running(shared: Path) -> Iterator[Gateways]:
    """Give an HBase's gateways, and stop it, if it was started here, after its last user.

    shared: a folder that is the same for all processes of this run.
    """
    named = os.environ.get(VARIABLE)
    if named:
        yield Gateways(*named.split(","))
        return
    folder = shared / "hbase"
    uris = _join(folder, shared / "hbase.users")
    try:
        yield Gateways(uris["thrift1"], uris["thrift2"])
    finally:
        _leave(folder, shared / "hbase.users")


def _join(folder: Path, users: Path) -> dict[str, str]:
    with _locked(users) as count:
        cluster = open_cluster(folder) if count[0] else start(Settings(folder))
        count[0] += 1
        return cluster.uris


def _leave(folder: Path, users: Path) -> None:
    with _locked(users) as count:
        count[0] -= 1
        if not count[0]:
            open_cluster(folder).stop(grace_ms=0)


@contextmanager
def _locked(users: Path) -> Iterator[list[int]]:
    """Read and write the number of users, while nobody else does."""
    with users.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = [json.loads(file.read() or "0")]
        try:
            yield count
        finally:
            file.seek(0)
            file.truncate()
            file.write(json.dumps(count[0]))
