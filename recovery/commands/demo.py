"""`txn demo flights`: real flights through Spark, killed part way, mended and proven."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from recovery.commands.common import FOUND, JsonOption, console, print_json
from recovery.commands.protocol import WORDS, parse_protocol
from recovery.findings import Finding
from recovery.fsck import check, repair
from txn.client.engine import Engine
from txn.demo.data import DemoTables, WayName
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.model import check_choice

if TYPE_CHECKING:
    from txn.demo.flights import Report

app = typer.Typer(help="See it at work on real data.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """See it at work on real data."""


def parse_way(name: str) -> WayName:
    """Return the name of a way, or tell typer that it is none."""
    try:
        check_choice("by", name, WayName)
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error)) from error
    return cast(WayName, name)


@app.command("flights")
def flights(
    *,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Where to load them; without it, a store that is removed."),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What its tables are called: NAME, NAME-indexes and NAME-transactions, empty or "
            "not there yet. Without it, a new name.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=365, help="Days of the year 2013.")] = 7,
    crash: Annotated[bool, typer.Option(help="Kill the job part way, and mend.")] = True,
    protocol: Annotated[
        str, typer.Option(help=f"That of its transactions: {WORDS}.", parser=parse_protocol)
    ] = "six-phase",
    by: Annotated[
        str,
        typer.Option(
            metavar="WAY",
            help="How they come into the tables: partition (commit_partition), arrow "
            "(commit_frame), writer or stream (the format txn: a flight and its index entries are "
            "two transactions), or atomic (the same, all flights as one transaction, and then all "
            "entries as another; readers look on meanwhile).",
            parser=parse_way,
        ),
    ] = "partition",
    as_json: JsonOption = False,
) -> None:
    """Load flights with Spark, by transactions, and prove that each is there exactly once.

    Example: txn demo flights --days 3
    """
    with require_extra("demo"):  # imported here: other commands neither need Spark nor wait for it
        from txn.demo.flights import Recovery, run_demo  # noqa: PLC0415
        from txn.demo.processes import JobError  # noqa: PLC0415

    def find_left(engine: Engine, its: DemoTables) -> Iterator[Finding]:
        # The job is dead, whatever its rows say: nothing has to be waited for.
        data = [its.flights.encode(), its.indexes.encode()]
        return check(engine.context, grace_ms=0, scan=data)

    def repair_one(engine: Engine, finding: Finding) -> None:
        repair(engine.context, finding)

    name = tables or f"flights-{secrets.token_hex(4)}"
    screen = Console(stderr=True) if as_json else console()
    with _place(store) as uri:
        try:
            report = run_demo(
                uri,
                name,
                Recovery(find_left, repair_one),
                screen,
                days=days,
                crash=crash,
                protocol=parse_protocol(protocol),
                by=parse_way(by),
            )
        except JobError as error:
            typer.echo(error.log, err=True)
            raise
    if as_json:
        print_json(_document(report), pretty=True)
    elif store is None:
        screen.print("to look around afterwards, name a store: --store embedded:///path")
    else:
        _tell_of_tables(store, report.tables, screen)
    if not report.holds:
        raise typer.Exit(FOUND)


def _tell_of_tables(store: str, tables: DemoTables, screen: Console) -> None:
    screen.print("its tables stay: drop them when you have seen enough. To look around:")
    look = f"  txn fsck --store '{store}' --transactions {tables.transactions}"
    look += f" --scan {tables.flights} --scan {tables.indexes}"
    screen.print(look, markup=False, soft_wrap=True)


@contextmanager
def _place(store: str | None) -> Iterator[str]:
    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="hbase-txn-store-") as folder:
        yield f"embedded://{Path(folder) / 'store'}"


def _document(report: Report) -> dict[str, object]:
    return {
        "holds": report.holds,
        "tables": asdict(report.tables),
        "flights": report.flights,
        "crash": report.crash and asdict(report.crash),
        "found": dict(report.found),
        "left": dict(report.left),
        "loaded": report.loaded,
        "sights": {table: sights.document() for table, sights in report.sights.items()},
        "checks": [asdict(check) | {"holds": check.holds} for check in report.checks],
    }
