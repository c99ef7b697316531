"""`txn serve`: HBase's Thrift services without HBase, and transactions over Thrift, with or without
HBase."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    JsonOption,
    StoreOption,
    TransactionsOption,
    parse_age,
    print_json,
)
from recovery.commands.protocol import WORDS, parse_protocol
from txn.host.extras import require_extra
from txn.host.tokens import read_token
from txn.server.options import MEGABYTE, Limits, Options

DEFAULTS = Limits()
URIS = {
    "thrift1": "hbase+thrift1://{host}:{port}",
    "thrift2": "hbase+thrift2://{host}:{port}",
    "transactional": "txn://{host}:{port}",
    "metrics": "http://{host}:{port}/metrics",
}
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, metavar="PORT")]
FileOption = Annotated[Path | None, typer.Option(metavar="FILE")]


def serve(
    *,
    store: StoreOption,
    thrift1: PortOption = None,
    thrift2: PortOption = None,
    transactional: PortOption = None,
    metrics: PortOption = None,
    bind: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that serve the same ports.")
    ] = 1,
    tls_cert: FileOption = None,
    tls_key: FileOption = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What Transactional requests must show.")
    ] = None,
    connections: Annotated[
        int, typer.Option(min=1, help="Open at once, in a worker.")
    ] = DEFAULTS.connections,
    message: Annotated[
        int, typer.Option(min=1, help="Megabytes of a request.", metavar="MB")
    ] = DEFAULTS.message_bytes // MEGABYTE,
    memory: Annotated[
        int, typer.Option(min=1, help="Megabytes of all requests of a worker.", metavar="MB")
    ] = DEFAULTS.memory_bytes // MEGABYTE,
    idle: Annotated[str, typer.Option(help="How long a connection may rest.")] = "10m",
    request: Annotated[str, typer.Option(help="How long a request may take to arrive.")] = "30s",
    grace: Annotated[str, typer.Option(help="How long a stop waits for requests.")] = "10s",
    keep_deletes: Annotated[
        str, typer.Option(help="How long delete markers stay; longer than fsck's --retention.")
    ] = "25h",
    protocol: Annotated[
        str | None,
        typer.Option(help=f"That of the store's transactions: {WORDS}.", parser=parse_protocol),
    ] = None,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Serve a store on ports of this machine until told to end. A port of 0 picks a free one.

    HBase clients speak to --thrift1 and --thrift2, connect("txn://host:port") to --transactional,
    the only one for a store in HBase, such as hbase://zk1,zk2, whose endpoint for commits it is.
    Prometheus reads http://host:port/metrics of --metrics: what becomes of transactions.
    """
    with require_extra("emulator"):
        from txn.emulator import serving  # noqa: PLC0415
    asked = {"thrift1": thrift1, "thrift2": thrift2, "transactional": transactional}
    hosted = serving.Hosted(
        store,
        {name: port for name, port in asked.items() if port is not None},
        None if token_file is None else read_token(token_file),
        None if protocol is None else parse_protocol(protocol),
        metrics,
        transactions,
    )
    limits = Limits(
        connections=connections,
        message_bytes=message * MEGABYTE,
        memory_bytes=memory * MEGABYTE,
        idle_ms=parse_age(idle, "--idle"),
        request_ms=parse_age(request, "--request"),
        grace_ms=parse_age(grace, "--grace"),
    )
    kept_ms = parse_age(keep_deletes, "--keep-deletes")
    options = Options(bind, workers, tls_cert, tls_key, limits, kept_ms)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(process)d %(message)s")
    log = logging.getLogger("txn.serve")
    serving.serve(hosted, options, lambda ports: _tell(bind, ports, as_json), log)


def _tell(bind: str, ports: Mapping[str, int], as_json: bool) -> None:
    """Say where it listens, in one line that can be waited for."""
    host = f"[{bind}]" if ":" in bind else bind
    uris = {name: URIS[name].format(host=host, port=port) for name, port in ports.items()}
    if as_json:
        print_json({"ports": dict(ports), "uris": uris})
    else:
        typer.echo("serving  " + "  ".join(uris.values()))
