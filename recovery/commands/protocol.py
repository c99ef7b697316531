"""`txn init` and `txn convert`: which protocol a database has."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    FOUND,
    RETENTION,
    Duration,
    JsonOption,
    StoreOption,
    TransactionsOption,
    YesOption,
    complain,
    confirm_stopped,
    console,
    print_json,
    print_result,
    row_bar,
    time_option,
)
from recovery.convert import convert as convert_database
from recovery.convert import find_obstacles
from recovery.opening import open_store_of
from txn.client.connect import connect
from txn.errors import InvalidRequestError
from txn.model import check_choice
from txn.protocol.context import Context
from txn.protocol.statuses import ProtocolName

WORDS = " or ".join(get_args(ProtocolName))


def parse_protocol(name: str) -> ProtocolName:
    """Return the name of a protocol, or tell typer that it is none."""
    try:
        check_choice("protocol", name, ProtocolName)
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from error
    return cast(ProtocolName, name)


def init(
    *,
    protocol: Annotated[
        str | None,
        typer.Option(
            help=f"{WORDS}; a new database gets six-phase by default.",
            metavar="NAME",
            parser=parse_protocol,
        ),
    ] = None,
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Make the transaction table, and the store itself if it is new, and choose the protocol.

    A database that exists keeps its protocol. Asking for another one is an error, exit code 2: see
    `txn convert`.

    Example: txn init --store embedded:///var/lib/app
    """
    wanted = None if protocol is None else parse_protocol(protocol)
    with connect(store, transactions=transactions, protocol=wanted) as engine:
        name = engine.context.rules.name
    line = f"transaction table {transactions} has the protocol {name}"
    print_result(as_json, {"transactions": transactions, "protocol": name}, line)


def convert(
    protocol: Annotated[
        str, typer.Argument(metavar="NAME", help=f"{WORDS}.", parser=parse_protocol)
    ],
    *,
    scan: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE", help="A table that transactions write to; repeat it for each one."
        ),
    ] = None,
    retention: Annotated[
        Duration,
        time_option(
            "--retention", "How long no lock may have changed; longer than any request can live."
        ),
    ] = RETENTION,
    yes: YesOption = False,
    store: StoreOption,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
) -> None:
    """Change the protocol of a database that no client uses and that has no transaction rows left.

    Exit code 0: it has the protocol. 1: refused, with what stands in the way and what to do.

    Example: txn convert fenced --scan accounts
    """
    wanted, tables = parse_protocol(protocol), [table.encode() for table in scan or ()]
    if store.startswith("txn:"):
        raise InvalidRequestError(
            "a server keeps the protocol that it began with: stop it, and convert its store",
            store=store.partition("?")[0],
        )
    with open_store_of(store, transactions) as context:
        found = context.rules.name
        deleted = 0
        obstacles = [] if found == wanted else _look(context, tables, retention, as_json)
        if not obstacles:
            if found != wanted:
                confirm_stopped(f"from {found} to {wanted}, in every table that is written", yes)
            deleted = convert_database(context, wanted, tables)
    if as_json:
        told = {"found": found, "protocol": found if obstacles else wanted}
        print_json(told | {"deleted": deleted, "obstacles": obstacles})
    else:
        for obstacle in obstacles:
            complain(obstacle)
        if not obstacles:
            was = "had it already" if found == wanted else f"was {found}"
            typer.echo(f"{transactions} is {wanted} ({was}); leftover cells deleted: {deleted}")
    if obstacles:
        raise typer.Exit(FOUND)


def _look(context: Context, tables: list[bytes], retention_ms: int, as_json: bool) -> list[str]:
    with row_bar(console(), "looking", hidden=as_json) as looked:
        return list(find_obstacles(context, tables, retention_ms=retention_ms, looked=looked))
