"""`connect(uri)` for every kind of URI: a store of one's own, or a server that has one."""

from __future__ import annotations

from txn.client.engine import Engine
from txn.clock import Clock, SystemClock
from txn.errors import InvalidRequestError
from txn.events import Listener, silent
from txn.host.extras import require_extra
from txn.policy import Policy
from txn.protocol.statuses import ProtocolName
from txn.request import TRANSACTIONS
from txn.stores import open_store


def connect(
    uri: str,
    *,
    table: str | bytes | None = None,
    transactions: str | bytes = TRANSACTIONS,
    salt_buckets: int = 1,
    policy: Policy | None = None,
    on_event: Listener = silent,
    clock: Clock | None = None,
    protocol: ProtocolName | None = None,
    create: bool = True,
) -> Engine:
    """Open a store, or a server's, by its URI and return an engine on it.

    uri: `hbase://zk1,zk2:2181/hbase`, HBase's own servers as ZooKeeper knows them, or
    `hbase://?registry=master1:16000`, as its masters do (options in docs/hbase.md); where only a
    Thrift gateway of HBase can be reached, `hbase+thrift2://host:port`, `hbase+thrift1://host:port`
    (options in txn/stores/gateway.py); `embedded:///path` (durable, many processes),
    `embedded:///path?sync=off` (survives killed processes, not a power failure), `memory://`; or
    `txn://host:port?token=..&tls=on&ca=file`, a `txn serve` whose store is used through it.
    table: what keys without a table mean. transactions: the transaction table, made where missing.
    buckets: how many prefixes spread the transaction rows, 1 to 100. protocol: "six-phase" or
    "fenced", which a new database gets, and which any other must have; None: whichever it has,
    six-phase for a new one. create: whether a missing store or transaction table is made; else it
    is an InvalidRequestError. A server has its own transaction table, buckets, policy, watch and
    protocol.
    """
    if not (isinstance(uri, str) and uri.startswith("txn:")):
        clock = clock or SystemClock()
        store = open_store(uri, clock, create=create)
        try:
            return Engine(
                store,
                table=table,
                transactions=transactions,
                salt_buckets=salt_buckets,
                policy=policy,
                on_event=on_event,
                clock=clock,
                protocol=protocol,
                create=create,
            )
        except BaseException:
            store.close()
            raise
    given = (transactions, salt_buckets, policy, protocol)
    if given != (TRANSACTIONS, 1, None, None) or on_event is not silent:
        raise InvalidRequestError(
            "transactions, buckets, policy, watch and protocol are the server's own"
        )
    with require_extra("emulator", uri="txn://"):
        from txn.service.client import connect_server  # noqa: PLC0415
    return Engine.over(connect_server(uri, clock), table)
