"""`txn console`: the store in a browser."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Annotated

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    JsonOption,
    StoreOption,
    TransactionsOption,
    print_json,
)
from recovery.console.settings import PORT, ConsoleSettings
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.host.tokens import read_token

FileOption = Annotated[Path | None, typer.Option(metavar="FILE")]


def console(
    *,
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    locks: Annotated[
        str | None,
        typer.Option(
            envvar="TXN_LOCKS", metavar="URI", help="A lock manager; else the store's own locks."
        ),
    ] = None,
    leases: Annotated[
        str | None,
        typer.Option(envvar="TXN_LEASES", metavar="URL", help="A database of leases."),
    ] = None,
    bind: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = PORT,
    tls_cert: FileOption = None,
    tls_key: FileOption = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What those must show who repair, and who look from elsewhere; else one is made.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Of a `txn serve --metrics`, whose counts are shown; repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a store in a browser: transactions, keys, locks, leases, and what fsck finds.

    Looking writes nothing. On the loopback it needs nothing either; all else needs the token.
    """
    with require_extra("console"):
        from recovery.console.serving import serve_console  # noqa: PLC0415
    token = secrets.token_urlsafe(16) if token_file is None else read_token(token_file)
    settings = ConsoleSettings(
        store, token, transactions, locks, leases, bind, port, tls_cert, tls_key, metrics or ()
    )
    if not settings.is_local and token_file is None:
        raise InvalidRequestError("to be seen from elsewhere it needs --token-file", bind=bind)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    shown = token if token_file is None else None
    serve_console(settings, lambda address: _tell(address, shown, as_json))


def _tell(address: str, token: str | None, as_json: bool) -> None:
    """Say where it is, in one line that can be waited for."""
    if as_json:
        print_json({"url": address, "token": token})
    else:
        typer.echo(f"console  {address}" + (f"  token {token}" if token else ""))
