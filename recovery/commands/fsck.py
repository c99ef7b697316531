"""`txn fsck`: find what crashed clients left behind, and with --repair finish or undo it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from recovery.commands.common import (
    DEFAULT_TRANSACTIONS,
    FOUND,
    GRACE,
    RETENTION,
    Duration,
    JsonOption,
    RowBar,
    StoreOption,
    TransactionsOption,
    ask_person,
    console,
    find_width,
    print_json,
    row_bar,
    time_option,
)
from recovery.commands.looks import Asked, Found, Look, look_on_executors
from recovery.documents import finding_document, result_document, tally_document
from recovery.findings import Finding, Kind, Repaired, Result, Tally, Young
from recovery.fsck import LONGEST_REQUEST_MS, Ages, check, compact, repair_all
from recovery.opening import open_store_of
from recovery.text import count_text, duration_text, error_text, short_id, time_text
from txn.errors import InvalidRequestError
from txn.protocol.clocks import accept_clock, check_clock
from txn.protocol.context import Context
from txn.text import escape, key_text, shorten

LISTED = 20
TIMES = ("since", "beat", "newest", "until")


def fsck(
    *,
    store: StoreOption,
    do_repair: Annotated[bool, typer.Option("--repair", help="Repair what is found.")] = False,
    scan: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Check this data table for leftovers, too; repeatable."),
    ] = None,
    grace: Annotated[
        Duration, time_option("--grace", "How long a transaction must have been silent.")
    ] = GRACE,
    retention: Annotated[
        Duration,
        time_option(
            "--retention", "How long finished rows are kept; longer than any request can live."
        ),
    ] = RETENTION,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that no client is at work: see --retention.")
    ] = False,
    clock_is_right: Annotated[
        bool,
        typer.Option(
            "--accept-clock",
            help="Confirm that this machine's clock, which was set, is right (embedded stores).",
        ),
    ] = False,
    transactions: TransactionsOption = DEFAULT_TRANSACTIONS,
    as_json: JsonOption = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print findings and errors, and no summary.")
    ] = False,
    spark: Annotated[
        str | None,
        typer.Option(
            "--spark",
            metavar="[MASTER]",
            help="Check on Spark's executors: those of this master, else this machine's cores.",
        ),
    ] = None,
) -> None:
    """Find what crashed clients left behind; with --repair, finish or undo it.

    It is safe at any time, beside live clients and beside itself. It leaves alone what is younger
    than the grace, counts it in the summary, and does not change the exit code for it. With
    --repair an embedded store also reclaims the space of what was deleted before the retention.

    Exit code 0: clean, or everything was repaired. 1: findings, or with --repair: findings are
    left.

    Example: txn fsck --repair --scan accounts
    """
    if clock_is_right and not do_repair:
        raise InvalidRequestError("--accept-clock goes with --repair")
    if do_repair and not yes:
        _confirm(retention)
    out, tables = console(), [table.encode() for table in scan or ()]
    ages = Ages(grace, retention)
    with ExitStack() as stack:
        context = stack.enter_context(open_store_of(store, transactions, mends=do_repair))
        if do_repair:
            _require_clock(context, clock_is_right)
        if spark is None:
            bar = stack.enter_context(row_bar(out, "fsck", hidden=as_json or quiet))
            look = look_here(context, ages, tables, bar, do_repair=do_repair)
        else:
            asked = Asked(store, transactions, ages, tables, do_repair)
            bar = stack.enter_context(row_bar(out, "fsck", unit="parts", hidden=as_json or quiet))
            look = stack.enter_context(look_on_executors(spark, asked, bar))
        show = _print_json if as_json else partial(_print, out, context.clock.wall_ms())
        show(look.found)
        if do_repair:
            compact(context, retention_ms=ages.retention_ms, tables=tables)
    if not quiet:
        _print_end(out, look.tally, ages.grace_ms, as_json)
    if look.tally.left:
        raise typer.Exit(FOUND)


def look_here(
    context: Context, ages: Ages, tables: list[bytes], bar: RowBar, *, do_repair: bool
) -> Look:
    """Return the findings, which come as they are consumed, each repaired if that is wanted."""
    look = Look()
    bar.expect_tables(context.store, dict.fromkeys((context.table, *tables)))

    def looked(table: bytes) -> None:
        look.tally.rows += 1
        bar(table)

    def find() -> Iterator[Found]:
        findings = check(
            context,
            grace_ms=ages.grace_ms,
            retention_ms=ages.retention_ms,
            scan=tables,
            looked=looked,
            young=look.tally.young,
            between=bar.reach_row,
        )
        unrepaired = ((finding, None) for finding in findings)
        for each in repair_all(context, findings) if do_repair else unrepaired:
            look.tally.add(*each)
            yield each

    look.found = find()
    return look


def _require_clock(context: Context, is_right: bool) -> None:
    """Raise AbortedError where the clock is wrong by which ages are judged."""
    if is_right:
        accept_clock(context)
    check_clock(context)


def _confirm(retention_ms: int) -> None:
    """Ask a person whether no client is at work, where the retention takes that for granted."""
    if retention_ms >= LONGEST_REQUEST_MS:
        return
    least = duration_text(LONGEST_REQUEST_MS)
    ask_person(
        f"a retention below {least}: is every client stopped?",
        f"a retention below {least} is safe only while no client is at work: then say --yes",
    )


def _print_json(found: Iterator[Found]) -> None:
    for finding, result in found:
        repaired = {"repair": result_document(result)} if result else {}
        print_json(finding_document(finding) | repaired)


def _print(out: Console, now_ms: int, found: Iterator[Found]) -> None:
    """Print the first findings of each kind as they come."""
    listed: Counter[Kind] = Counter()
    for finding, result in found:
        listed[finding.kind] += 1
        if listed[finding.kind] <= LISTED:
            out.print(_row(finding, result, now_ms))
        elif listed[finding.kind] == LISTED + 1:
            out.print(f"{finding.kind.value:15} and more; --json lists all")


def _row(finding: Finding, result: Result | None, now_ms: int) -> Group:
    name = _name(finding.transaction or b"")
    holder = {"holder": name} if finding.key and name else {}
    seen = ", ".join(
        f"{name} {_fact(name, fact, now_ms)}"
        for name, fact in (holder | dict(finding.facts)).items()
        if fact or name not in TIMES
    )
    text = Text(key_text(finding.key) if finding.key else name, overflow="fold")
    if result is not None:
        style = "green" if isinstance(result, Repaired) else "red"
        text.append(f"  {error_text(result.why)}", style)
    row = Table.grid(padding=(0, 1))
    row.add_column(width=15, no_wrap=True)
    row.add_row(Text(finding.kind.value, "yellow"), text)
    return Group(row, Padding(Text(seen, overflow="fold"), (0, 0, 0, 2), expand=False))


def _name(row_key: bytes) -> str:
    """Return the name of a transaction as `txn ls` prints it: on a terminal, its short id."""
    return short_id(row_key) if find_width() else escape(row_key)


def _fact(name: str, fact: object, now_ms: int) -> str:
    match fact:
        case bytes():
            return shorten(fact)
        case int() if name in TIMES:
            far = duration_text(abs(now_ms - fact))
            return f"{time_text(fact)} ({f'{far} ago' if fact <= now_ms else f'in {far}'})"
        case _:
            return error_text(str(fact))


def _print_end(out: Console, tally: Tally, grace_ms: int, as_json: bool) -> None:
    if as_json:
        print_json(tally_document(tally, grace_ms))
    else:
        print_tally(out, tally, grace_ms)


def print_tally(out: Console, tally: Tally, grace_ms: int) -> None:
    """Print what each kind of the findings is, and a summary of them all."""
    print_kinds(out, tally)
    print_summary(out, tally, grace_ms)


def print_kinds(out: Console, tally: Tally) -> None:
    """Print of each kind how many findings there are, what it is, and what repair does."""
    kinds = tally.count_kinds()
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for kind, count in kinds.items():
        meaning = f"{kind.meaning}. --repair: {kind.remedy}."
        table.add_row(f"{count:,}", Text(kind.value, "yellow"), Text(meaning))
    if kinds:
        out.print("", table)


def print_summary(out: Console, tally: Tally, grace_ms: int) -> None:
    """Print how many findings there were, and what became of them."""
    rows = f"{count_text(tally.rows, 'row')} checked"
    if not tally.found and not tally.young.counts:
        out.print(f"clean: nothing was left behind; {rows} besides finished transactions")
        return
    numbers = {
        "rolled forward": tally.rolled_forward,
        "rolled back": tally.rolled_back,
        "cleaned up": tally.cleaned_up,
        "moved on": tally.moved_on,
        "left alone": tally.left if tally.is_repair else 0,
    }
    told = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)
    out.print(f"{count_text(tally.found, 'finding')}{told and ': ' + told}; {rows}")
    _print_young(out, tally.young, grace_ms)


def _print_young(out: Console, young: Young, grace_ms: int) -> None:
    """Say what is unfinished and no finding yet: a quiet store is not to be told from this by the
    exit code."""
    if not young.counts:
        return
    kinds = ", ".join(f"{young.counts[kind]:,} {kind.value}" for kind in Kind if young.counts[kind])
    oldest, grace = duration_text(young.oldest_ms), duration_text(grace_ms)
    out.print(
        f"unfinished, and left alone: {kinds}. The oldest has been silent for {oldest}, which is "
        f"within the grace of {grace}: its client may be at work. Run fsck again after the grace, "
        "or with --grace 0s if every client is known to be dead."
    )
