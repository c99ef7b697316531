"""`txn serve`: HBase's Thrift services without HBase, and transactions over Thrift."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from recovery.commands import common
from recovery.commands.common import Duration, time_option
from recovery.opening import make_context
from txn.clock import SystemClock
from txn.host.extras import require_extra
from txn.host.tokens import read_token
from txn.protocol.statuses import ProtocolName
from txn.server.options import MEGABYTE, Limits, Options
from txn.stores.base import Store

DEFAULTS, KEEP_DELETES_MS = Limits(), Options().keep_deletes_ms
URIS = {
    "thrift1": "hbase+thrift1://{host}:{port}",
    "thrift2": "hbase+thrift2://{host}:{port}",
    "transactional": "txn://{host}:{port}",
    "metrics": "http://{host}:{port}/metrics",
}


def _port(service: str) -> Any:
    text = f"The port for {service}; 0 picks a free one."
    return typer.Option(min=0, max=65535, metavar="PORT", help=text)


def serve(
    *,
    store: common.StoreOption,
    thrift1: Annotated[int | None, _port("HBase's Thrift 1")] = None,
    thrift2: Annotated[int | None, _port("HBase's Thrift 2")] = None,
    transactional: Annotated[int | None, _port("clients of txn://host:port")] = None,
    metrics: Annotated[int | None, _port("Prometheus, at /metrics")] = None,
    bind: common.BindOption = "127.0.0.1",
    workers: int = Option(1, min=1, max=64, metavar="N", help="Processes that share the ports."),
    tls_cert: common.CertificateOption = None,
    tls_key: common.KeyOption = None,
    token_file: Path | None = Option(
        None, metavar="FILE", help="The token that clients of --transactional must show."
    ),
    connections: int = Option(
        DEFAULTS.connections, min=1, metavar="N", help="The most connections of a worker."
    ),
    message: int = Option(
        DEFAULTS.message_bytes // MEGABYTE, min=1, help="The largest request.", metavar="MB"
    ),
    memory: int = Option(
        DEFAULTS.memory_bytes // MEGABYTE, min=1, help="All requests and replies.", metavar="MB"
    ),
    idle: Duration = time_option("--idle", "Close a connection this silent.", DEFAULTS.idle_ms),
    request: Duration = time_option(
        "--request", "How long a request may take to arrive.", DEFAULTS.request_ms
    ),
    stop_grace: Duration = time_option(
        "--stop-grace", "How long a stop waits for running requests.", DEFAULTS.grace_ms
    ),
    keep_deletes: Duration = time_option(
        "--keep-deletes", "Lifetime of delete markers, beyond fsck's --retention.", KEEP_DELETES_MS
    ),
    protocol: ProtocolName | None = Option(None, help="The protocol of a new database."),
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
) -> None:
    """Serve a store on ports of this machine until it is told to stop.

    HBase's clients connect to --thrift1 and --thrift2. Clients of this library connect to
    --transactional, the only service for a store that is itself in HBase.

    Example: txn serve --store embedded:///var/lib/app --thrift2 9090
    """
    with require_extra("emulator"):
        from txn.emulator import serving  # noqa: PLC0415
    asked = {"thrift1": thrift1, "thrift2": thrift2, "transactional": transactional}
    hosted = serving.Hosted(
        store,
        {name: port for name, port in asked.items() if port is not None},
        None if token_file is None else read_token(token_file),
        protocol,
        metrics,
        transactions,
    )
    limits = Limits(
        connections=connections,
        message_bytes=message * MEGABYTE,
        memory_bytes=memory * MEGABYTE,
        idle_ms=idle,
        request_ms=request,
        grace_ms=stop_grace,
    )
    options = Options(bind, workers, tls_cert, tls_key, limits, keep_deletes)
    common.write_log("%(asctime)s %(levelname)s %(process)d %(message)s")
    log = logging.getLogger("txn.serve")

    def make_app(store: Store) -> Any:
        from recovery.series import make_series_app  # noqa: PLC0415  (serving.FOLDER is set now)

        return make_series_app(make_context(store, transactions, SystemClock()))

    def announce(ports: Mapping[str, int]) -> None:
        host = f"[{bind}]" if ":" in bind else bind
        uris = {name: URIS[name].format(host=host, port=port) for name, port in ports.items()}
        line = "serving  " + "  ".join(uris.values())
        common.print_result(as_json, {"ports": dict(ports), "uris": uris}, line)

    serving.serve(hosted, options, announce, log, make_app)
