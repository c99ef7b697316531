"""`txn console`: the store in a browser."""

from __future__ import annotations

import secrets
from pathlib import Path

from typer import Option

from recovery.commands import common
from recovery.commands.leases import MaybeLeasesOption
from recovery.console.settings import PORT, ConsoleSettings
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.host.tokens import read_token


def console(
    *,
    store: common.StoreOption,
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    locks: common.MaybeLocksOption = None,
    leases: MaybeLeasesOption = None,
    bind: common.BindOption = "127.0.0.1",
    port: int = Option(PORT, metavar="PORT", min=0, max=65535, help="0 picks a free one."),
    tls_cert: common.CertificateOption = None,
    tls_key: common.KeyOption = None,
    token_file: Path | None = Option(
        None,
        metavar="FILE",
        help="The token that repairs, and visitors from other machines, must show. Without the "
        "option the console makes one.",
    ),
    metrics_from: list[str] | None = Option(
        None, metavar="URL", help="Show the metrics of this `txn serve --metrics`; repeatable."
    ),
    as_json: common.JsonOption = False,
) -> None:
    """Show a store in a browser: transactions, keys, locks, leases, and what fsck finds.

    Pages that only show write nothing, and need no token on this machine. Everything else needs it.
    Without --locks the console shows the locks of the store itself.

    Example: txn console --store hbase://zk1,zk2
    """
    with require_extra("console"):
        from recovery.console.server import serve_console  # noqa: PLC0415
    token = secrets.token_urlsafe(16) if token_file is None else read_token(token_file)
    settings = ConsoleSettings(
        store, token, transactions, locks, leases, bind, port, tls_cert, tls_key, metrics_from or ()
    )
    if not settings.is_local and token_file is None:
        words = "to listen on other addresses than the loopback, give --token-file"
        raise InvalidRequestError(words, bind=bind)
    common.write_log("%(asctime)s %(levelname)s %(name)s %(message)s")
    shown = token if token_file is None else None

    def announce(address: str) -> None:
        line = f"console  {address}" + (f"  token {shown}" if shown else "")
        common.print_result(as_json, {"url": address, "token": shown}, line)

    serve_console(settings, announce)
