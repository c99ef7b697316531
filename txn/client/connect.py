"""`connect(uri)` for every kind of URI: a store, or a server that has one."""

from __future__ import annotations

from txn.arguments import check_calls
from txn.client.engine import Engine
from txn.clock import Clock, SystemClock, call_until
from txn.errors import InvalidRequestError
from txn.events import Listener, silent
from txn.host.extras import require_extra
from txn.policy import Policy
from txn.protocol.statuses import KeptRows, ProtocolName
from txn.request import TRANSACTIONS
from txn.stores import open_store
from txn.stores.base import Store
from txn.stores.options import hide_login


@check_calls
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
    rows: KeptRows | None = None,
    create: bool = True,
    name: str | None = None,
) -> Engine:
    """Open a store, or a server's, by its URI and return an engine on it.

    uri: one of the following.
        `hbase://zk1,zk2:2181/hbase` or `hbase://?registry=master1:16000`: HBase's servers, found
        through ZooKeeper or the masters (options in docs/hbase.md).
        `hbase+thrift2://host:port`, `hbase+thrift1://host:port`: a Thrift gateway, if only that can
        be reached (options in txn/stores/gateway.py).
        `embedded:///path`: durable, for many processes; with `?sync=off` it survives killed
        processes, but not a power failure.
        `memory://`: in this process.
        `txn://host:port?token=..&tls=on&ca=file`: the store of a `txn serve`.
    table: the table of keys that name none.
    transactions: the transaction table, created if missing.
    salt_buckets: the number of prefixes that spread the transaction rows, 1 to 100.
    protocol: "six-phase" or "fenced": a new database gets it, and an existing one must have it;
    None: the existing one, or six-phase for a new database.
    rows: of a fenced database: "always", if every transaction leaves a row, or "needed", if only
    those do whose protocol needs it; chosen as `protocol` is. None: the existing setting, or
    "needed" for a new database.
    create: whether to create a missing store or transaction table; otherwise it is an
    InvalidRequestError.

    name: of this program, 1 to 64 characters; transaction rows show it with process id and host;
    None: that of its script or module. Of a server's client, it becomes the label `client`.

    A store or server that does not answer is a StoreError, at most a second after
    `Policy.deadline_ms`. A server has its own transaction table, salt buckets, policy, listener,
    protocol and rows.
    """
    given = {name: value for name, value in locals().items() if name != "uri"}
    clock = clock or SystemClock()
    if uri.startswith("txn:"):
        own = (transactions, salt_buckets, policy, protocol, rows)
        if own != (TRANSACTIONS, 1, None, None, None) or on_event is not silent:
            raise InvalidRequestError(
                "transactions, salt_buckets, policy, on_event, protocol and rows are of the server"
            )
        with require_extra("emulator", uri="txn://"):
            from txn.service.client import connect_server  # noqa: PLC0415
        opened: Engine | Store = Engine.over(connect_server(uri, clock, name), table)
    else:
        opened = open_store(uri, clock, create=create)
    try:
        if isinstance(opened, Engine):
            engine, due_ms = opened, clock.monotonic_ms() + opened.pace.policy.deadline_ms
            call_until(due_ms, lambda: engine.context)  # asks the server for it
        else:
            engine = Engine(opened, **given | {"clock": clock})
    except BaseException:
        opened.close()
        raise
    engine._place = hide_login(uri)
    return engine
