"""`txn fsck`: find what crashed clients left behind, and with --repair finish or undo it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich import markup
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Option
from typer.core import TyperCommand

from recovery import findings
from recovery.commands import common
from recovery.commands.common import Duration, RowBar, time_option
from recovery.console.progress import CheckProgress
from recovery.findings import GRACE_MS, RETENTION_MS, Ages, Finding, FindingResult, Kind, Tally
from recovery.fsck import check, compact, handle_findings, note_repair
from recovery.opening import open_store_of
from recovery.text import count_text, duration_text, error_text, short_id, time_text
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.protocol.clocks import accept_clock, check_clock
from txn.protocol.context import Context
from txn.text import escape, key_text, shorten

LISTED = 20
SPARK, HERE = "--spark", "local[*]"
TIMES = ("since", "heartbeat", "newest", "until")


def fsck(
    *,
    store: common.StoreOption,
    do_repair: bool = Option(False, "--repair", help="Repair what is found."),
    scan: list[str] | None = Option(
        None, metavar="TABLE", help="Check this data table for leftovers, too; repeatable."
    ),
    grace: Duration = time_option(
        "--grace", "How long a transaction was silent, at least its lock TTL; 0s: all.", GRACE_MS
    ),
    retention: Duration = time_option(
        "--retention", "How long finished rows stay; beyond the life of any request.", RETENTION_MS
    ),
    yes: bool = Option(False, "--yes", help="Confirm that no client is at work: see --retention."),
    clock_is_right: bool = Option(
        False, "--accept-clock", help="Confirm that this clock, which was set, is right (embedded)."
    ),
    transactions: common.TransactionsOption = common.DEFAULT_TRANSACTIONS,
    as_json: common.JsonOption = False,
    quiet: bool = Option(False, "--quiet", "-q", help="Print findings and errors, and no summary."),
    metrics_file: Path | None = Option(
        None, metavar="FILE", help="Write the series of alerts, for Prometheus' textfile collector."
    ),
    spark: str | None = Option(
        None, "--spark", metavar="[MASTER]", help="Check on this Spark master, else on local cores."
    ),
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
    if do_repair and retention < findings.LONGEST_REQUEST_MS:
        least = duration_text(findings.LONGEST_REQUEST_MS)
        statement = f"a retention below {least} is safe only while no client is at work"
        common.confirm(statement, "Is every client stopped?", yes)
    out, tables = common.console(), [table.encode() for table in scan or ()]
    ages, tally = Ages(grace, retention), Tally()
    with ExitStack() as stack:
        context = stack.enter_context(open_store_of(store, transactions, mends=do_repair))
        if do_repair:
            if clock_is_right:
                accept_clock(context)
            check_clock(context)  # it dates the ages
        unit = "rows" if spark is None else "parts"
        bar = stack.enter_context(common.row_bar(out, "fsck", unit=unit, hidden=as_json or quiet))
        if spark is None:
            found = check_here(context, tables, ages, bar, tally, do_repair=do_repair)
        else:
            wanted = (store, transactions, ages, do_repair)
            found = check_on_executors(spark, wanted, tables, bar, tally)
        stack.enter_context(closing(found))
        show = _print_json if as_json else partial(_print, out, context.clock.wall_ms())
        show(found)
        if do_repair:
            compact(context, retention_ms=retention, tables=tables)
            note_repair(context)
        if metrics_file is not None:
            with require_extra("metrics", option="--metrics-file"):
                from recovery.series import write_series  # noqa: PLC0415
            write_series(context, str(metrics_file))
    if as_json and not quiet:
        common.print_json(findings.tally_document(tally, grace))
    elif not quiet:
        print_tally(out, tally, grace)
    if tally.left:
        raise typer.Exit(common.FOUND)


def check_here(
    context: Context, tables: list[bytes], ages: Ages, bar: RowBar, tally: Tally, *, do_repair: bool
) -> Generator[FindingResult]:
    progress = None if bar.progress.disable else CheckProgress(context, tables)

    def on_progress(table: bytes, row: bytes) -> None:
        if progress is not None:
            progress.reach(table, row)
            bar.show_step(markup.escape(escape(table)), progress.percent, 100)

    def on_row(table: bytes) -> None:
        tally.rows += 1
        bar(table)

    found = check(
        context,
        grace_ms=ages.grace_ms,
        retention_ms=ages.retention_ms,
        scan=tables,
        on_row=on_row,
        young=tally.young,
        on_progress=on_progress,
    )
    for each in handle_findings(context, found, do_repair=do_repair):
        tally.add(*each)
        yield each


class MasterCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, name_master(args))


def name_master(args: list[str]) -> list[str]:
    named: list[str] = []
    for given, following in zip(args, [*args, "--"][1:], strict=True):
        named.append(given)
        if given == SPARK and following.startswith("-"):
            named.append(HERE)
    return named


def check_on_executors(
    master: str, wanted: tuple[str, str, Ages, bool], tables: list[bytes], bar: RowBar, tally: Tally
) -> Generator[FindingResult]:
    """Do the work of `check_here` on Spark executors, and yield the findings when all have ended.

    wanted: the store's URI, the transaction table, the ages, and whether to repair.
    """
    with require_extra("spark", option=SPARK):
        from recovery.spark import Inspection, open_session, plan_shares, repair_shares  # noqa: PLC0415
    inspection = Inspection(*wanted)
    with open_session(master) as spark:
        shares = plan_shares(inspection, tables, None, spark.sparkContext.defaultParallelism)
        bar.reach(0, len(shares))
        for each in repair_shares(spark, inspection, shares, bar.reach).toLocalIterator():
            if isinstance(each, Tally):
                tally.rows += each.rows
                tally.young.merge(each.young)
            else:
                tally.add(*each)
                yield each


def _print_json(found: Iterator[FindingResult]) -> None:
    for finding, result in found:
        repaired = {"repair": findings.result_document(result)} if result else {}
        common.print_json(findings.finding_document(finding) | repaired)


def _print(out: Console, now_ms: int, found: Iterator[FindingResult]) -> None:
    listed: Counter[Kind] = Counter()
    for finding, result in found:
        listed[finding.kind] += 1
        if listed[finding.kind] <= LISTED:
            out.print(_row(finding, result, now_ms))
        elif listed[finding.kind] == LISTED + 1:
            out.print(f"{finding.kind.value:15} and more; --json lists all")


def _row(finding: Finding, result: findings.Result | None, now_ms: int) -> Group:
    row_key = finding.transaction or b""
    name = short_id(row_key) if common.find_width() else escape(row_key)  # as `txn ls` prints it
    holder = {"holder": name} if finding.key and name else {}
    seen = ", ".join(
        f"{name.removesuffix('_ms')} {_fact(name, fact, now_ms)}"
        for name, fact in (holder | dict(finding.facts)).items()
        if fact or name not in TIMES
    )
    text = common.make_cell(key_text(finding.key) if finding.key else name)
    if result is not None:
        style = "green" if isinstance(result, findings.Repaired) else "red"
        text.append(f"  {error_text(result.why)}", style)
    row = Table.grid(padding=(0, 1))
    row.add_column(width=15, no_wrap=True)
    row.add_row(Text(finding.kind.value, "yellow"), text)
    return Group(row, Padding(common.make_cell(seen), (0, 0, 0, 2), expand=False))


def _fact(name: str, fact: object, now_ms: int) -> str:
    match fact:
        case bytes():
            return shorten(fact)
        case int() if name in TIMES:
            far = duration_text(abs(now_ms - fact))
            return f"{time_text(fact)} ({f'{far} ago' if fact <= now_ms else f'in {far}'})"
        case int() if name.endswith("_ms"):
            return duration_text(fact)
        case _:
            return error_text(str(fact))


def print_tally(out: Console, tally: Tally, grace_ms: int) -> None:
    """Print the number and the meaning of each kind that was found, then the summary."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for kind, count in tally.count_kinds().items():
        meaning = f"{kind.meaning}. --repair: {kind.remedy}."
        table.add_row(f"{count:,}", Text(kind.value, "yellow"), Text(meaning))
    if table.row_count:
        out.print("", table)
    print_summary(out, tally, grace_ms)


def print_summary(out: Console, tally: Tally, grace_ms: int) -> None:
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
    results = ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)
    out.print(f"{count_text(tally.found, 'finding')}{results and ': ' + results}; {rows}")
    if tally.left_old.counts:
        unfinished = count_text(tally.left_old.counts.total(), "unfinished transaction")
        oldest = duration_text(tally.left_old.oldest_ms)
        out.print(f"{unfinished} left; the oldest has been silent for {oldest}")
    if young := tally.young.counts:
        kinds = ", ".join(f"{young[kind]:,} {kind.value}" for kind in Kind if young[kind])
        oldest, grace = duration_text(tally.young.oldest_ms), duration_text(grace_ms)
        out.print(
            f"unfinished, and left alone: {kinds}. The oldest has been silent for {oldest}, which "
            f"is within the grace of {grace}, or its lock TTL: its client may be at work. Run fsck "
            "again later, or with --grace 0s if every client is known to be dead."
        )
