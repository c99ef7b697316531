"""`txn demo flights`: real flights through Spark, killed part way, repaired and proven."""

from __future__ import annotations

import secrets
import shlex
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recovery.commands.common import FOUND, JsonOption, console, print_json
from txn.demo.data import WayName
from txn.host.extras import require_extra
from txn.protocol.statuses import ProtocolName
from txn.stores.options import hide_login

app = typer.Typer(help="See it at work on real data.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """See it at work on real data."""


@app.command("flights")
def flights(
    *,
    store: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where to load them; else a temporary `txn serve`."),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What its tables are called: NAME, NAME-indexes and NAME-transactions, empty or "
            "not there yet. Without it, a new name in --store.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(metavar="N", min=1, max=365, help="Days of the year 2013.")
    ] = 3,
    crash: Annotated[bool, typer.Option(help="Kill the job part way, and repair.")] = True,
    protocol: Annotated[
        ProtocolName, typer.Option(help="The protocol of its transactions.")
    ] = "six-phase",
    by: Annotated[
        WayName,
        typer.Option(
            help="How they come into the tables: partition (commit_partition), arrow (the same, of "
            "record batches), writer or stream (the format txn: a flight and its index entries are "
            "two transactions), or atomic (the same, all flights as one transaction, and then all "
            "entries as another).",
        ),
    ] = "partition",
    as_json: JsonOption = False,
) -> None:
    """Load flights with Spark, by transactions, and prove that each is there exactly once.

    Example: txn demo flights --days 3
    """
    with require_extra("demo"):  # here, since other commands do not need Spark
        from recovery.commands.flights import describe_end, run_demo  # noqa: PLC0415
        from txn.demo.processes import JobError  # noqa: PLC0415
    # A temporary store has no other tables.
    name = tables or ("flights" if store is None else f"flights-{secrets.token_hex(4)}")
    screen = Console(stderr=True) if as_json else console()
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(number, leave)
    try:
        with open_place(store, screen) as uri:
            report = run_demo(uri, name, screen, days=days, crash=crash, protocol=protocol, by=by)
    except JobError as error:
        typer.echo(error.log, err=True)
        raise
    if as_json:
        print_json(report.document(), pretty=True)
    else:
        if store is None:
            words = "The store was temporary. To keep one and look around in it, give --store."
            screen.print(words)
        else:
            screen.print("The tables stay: drop them when you have seen enough. To look around:")
            made = report.tables
            command = ["txn", "fsck", "--store", hide_login(store), "--transactions"]
            command += [made.transactions, "--scan", made.flights, "--scan", made.indexes]
            screen.print(f"  {shlex.join(command)}", markup=False, soft_wrap=True)
        screen.print(f"\n{describe_end(report)}", style="bold", highlight=False)
    if not report.holds:
        raise typer.Exit(FOUND)


def leave(number: int, _: object) -> None:
    """Exit as if interrupted, so that the started processes are ended."""
    raise typer.Exit(128 + number)


@contextmanager
def open_place(store: str | None, screen: Console) -> Iterator[str]:
    """Yield the given store, or a temporary one that `txn serve` serves meanwhile."""
    from txn.demo.processes import Job  # noqa: PLC0415

    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="hbase-txn-store-") as folder:
        place = f"embedded://{Path(folder) / 'store'}?sync=off"
        arguments = ["serve", "--store", place, "--thrift2", "0", "--json"]
        with Job("recovery", arguments, Path(folder)) as server:
            uri: str = next(server.lines())["uris"]["thrift2"]
            screen.print(f"store   `txn serve` over a temporary folder: {uri}", highlight=False)
            yield uri
