"""The steps of `txn demo flights`: load, kill part way, check, repair, load again, and prove.

The job (`txn.demo.job`) runs in its own processes. This module starts and kills it, and shows what
the crash left and how repair dealt with it.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from recovery import scan
from recovery.commands.common import row_bar
from recovery.commands.fsck import check_here, print_summary, print_tally
from recovery.commands.show import print_explanation
from recovery.findings import Ages, Finding, Kind, Tally, tally_document
from recovery.inspect import explain
from recovery.text import count_text
from txn.client.connect import connect
from txn.client.engine import Engine
from txn.demo.data import ANCHOR, DAYS, ENTRY, FAMILY, DemoTables, WayName, tables_named, unpack
from txn.demo.processes import Job, Line
from txn.demo.proof import ProofCheck
from txn.documents import Document
from txn.errors import InvalidRequestError
from txn.protocol.protocols import protocol_key
from txn.protocol.row import decode_row
from txn.protocol.statuses import COMMITTED, UNDECIDED, ProtocolName, Status
from txn.stores.options import hide_login
from txn.text import escape

# The job is killed while both undecided and decided transactions are under way. It is paused until
# sent requests have arrived; if a kind is missing, it is resumed for a moment.
TRIES = 40
SETTLES_S, GOES_ON_S = 0.1, 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """The report of the demonstration.

    crash: how the job was killed: see `load_and_kill`. repair: see `repair_crash`.
    """

    tables: DemoTables
    flights: int
    loaded: Line
    checks: Sequence[ProofCheck]
    crash: Document | None = None
    repair: Document | None = None

    @property
    def holds(self) -> bool:
        is_repaired = self.repair is None or not self.repair["left"]
        return is_repaired and all(check.holds for check in self.checks)

    def document(self) -> Document:
        document = asdict(self)
        document |= document.pop("repair") or {}
        checks = [asdict(check) | {"holds": check.holds} for check in self.checks]
        return document | {"holds": self.holds, "checks": checks}


@dataclass(frozen=True, slots=True)
class Story:
    """The setting of the demonstration: a store that several processes can open, and its tables.

    by: the way to load the tables. place: a folder for the job's files.
    """

    uri: str
    tables: DemoTables
    by: WayName
    place: Path
    out: Console
    steps: Iterator[int] = field(default_factory=lambda: count(1))

    def begin(self, title: str) -> None:
        self.out.print(Text(f"\n{next(self.steps)}. {title}", "bold"))

    def open_engine(self, protocol: ProtocolName | None = None) -> Engine:
        return connect(self.uri, transactions=self.tables.transactions, protocol=protocol)

    @contextmanager
    def run_job(self, csv: Path, *more: str) -> Iterator[tuple[Job, Iterator[Line]]]:
        arguments = ["--store", self.uri, "--tables", self.tables.flights, "--csv", str(csv)]
        arguments += ["--folder", str(self.place), "--by", self.by]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with (
            Job("txn.demo.job", [*arguments, *more], self.place) as job,
            Progress(*columns, TimeElapsedColumn(), console=self.out) as progress,
        ):
            yield job, show_lines(job.lines(), progress)


def run_demo(
    uri: str,
    name: str,
    out: Console,
    *,
    days: int,
    crash: bool,
    protocol: ProtocolName | None = None,
    by: WayName = "partition",
) -> Report:
    """Run the whole demonstration on a store that several processes can open; return its report.

    name: of its tables, which must be empty or absent. days: the number of days, from January 1.
    crash: whether to kill the job part way. protocol: of its transactions. by: the way to load.
    """
    if not 1 <= days <= DAYS:
        raise InvalidRequestError("days must be 1 to 365", days=days)
    if uri.startswith("memory:"):
        raise InvalidRequestError("the job's processes cannot share memory", store=hide_login(uri))
    tables = tables_named(name)
    with tempfile.TemporaryDirectory(prefix="hbase-txn-flights-") as place:
        story = Story(uri, tables, by, Path(place), out)
        make_tables(story, protocol)
        out.print(f"tables  {'  '.join(astuple(tables))}", highlight=False)
        csv = unpack(story.place, days)
        killed = load_and_kill(story, csv) if crash else None
        repair = repair_crash(story) if crash else None
        flights, loaded, checks = load_and_prove(story, csv)
    report = Report(tables, flights, loaded, checks, killed, repair)
    show_checks(report, out)
    return report


def make_tables(story: Story, protocol: ProtocolName | None) -> None:
    """Create the tables. Raise InvalidRequestError if one is not empty, as its rows would count."""
    with story.open_engine(protocol) as engine:
        for table in (story.tables.flights, story.tables.indexes):
            engine.ensure_table(table, [FAMILY])
        own = protocol_key(engine.context.table).row
        for table in astuple(story.tables):
            rows = engine.context.store.scan(table.encode())
            if any(row.row != own for row in rows):
                words = "the tables must be empty: choose another name"
                raise InvalidRequestError(words, table=table)


def load_and_kill(story: Story, csv: Path) -> Document:
    """Run the job; kill its Python workers at a third of the work, and all of it at two thirds.

    Return how many `transactions` its tasks had reported, how many `parts` of atomic ones had
    begun, and how many `workers` were killed first and `processes` at the end.
    """
    total = workers = 0
    last: Line = {"done": 0, "transactions": 0}
    story.begin("Load the flights with Spark, and kill the job part way")
    with story.run_job(csv) as (job, lines):
        for line in lines:
            if line["event"] == "total":
                total = line["steps"]
            elif line["event"] == "progress":
                last = line
            if total and not workers and last["done"] >= total / 3:
                workers = job.signal_workers(signal.SIGKILL)
                some = count_text(workers, "Python worker")
                story.out.print(f"Killed {some}. Spark starts others and repeats their tasks.")
            if total and last["done"] >= 2 * total / 3:
                break
        if story.by != "atomic":
            stop_half_done(story, job)
        done, parts = last["transactions"], last.get("parts", 0)
        killed = job.kill()
    so_far = f"{done:,} of {total:,} transactions"
    if parts:  # of these is the total, then
        so_far = f"{count_text(done, 'transaction')} and begun {parts:,} of {total:,} parts"
    processes = count_text(killed, "process", "processes")
    story.out.print(f"Killed the whole job, {processes}, after it had reported {so_far}.")
    return {"transactions": done, "parts": parts, "workers": workers, "processes": killed}


def stop_half_done(story: Story, job: Job) -> None:
    """Pause the job's workers while some transactions are undecided and some decided, if possible.
    If a commit is one local transaction, none is ever seen half done."""
    unfinished = [status for status in Status if not status.is_finished]
    with story.open_engine() as engine:
        if engine.context.is_local:
            return
        for _ in range(TRIES):
            job.signal_workers(signal.SIGSTOP)
            time.sleep(SETTLES_S)
            rows = map(decode_row, scan.list_heads(engine.context, unfinished))
            statuses = {row.status for row in rows}
            if statuses & UNDECIDED and statuses & COMMITTED:
                return
            job.signal_workers(signal.SIGCONT)
            time.sleep(GOES_ON_S)


def repair_crash(story: Story) -> Document:
    """Let fsck check, repair, and check again. Return the findings by kind that were `found` and
    `left`, the results of repair, the row key of a `victim` that is explained (if there is one),
    and the contents of the tables `before` and `after`."""
    ages = Ages(grace_ms=0)  # the job is dead, so there is no need to wait
    data = [story.tables.flights.encode(), story.tables.indexes.encode()]
    story.begin("Look at what the crash left: txn fsck")
    with story.open_engine() as engine:
        context = engine.context

        def run_fsck(do_repair: bool) -> tuple[list[Finding], Tally]:
            with row_bar(story.out, "fsck", hidden=False) as bar:
                tally = Tally()
                found = check_here(context, data, ages, bar, tally, do_repair=do_repair)
                return [finding for finding, _ in found], tally

        before = count_contents(engine, story.tables)
        while (now := count_contents(engine, story.tables)) != before:
            before = now  # a busy server still has requests of the killed job
        findings, found = run_fsck(do_repair=False)
        print_tally(story.out, found, grace_ms=0)
        kinds = (Kind.DECIDED, Kind.UNDECIDED, Kind.ABORTING)  # the first is best explained
        ranked = (each.transaction for kind in kinds for each in findings if each.kind is kind)
        victim = next(ranked, None)
        if victim is not None and (explained := explain(context, victim)):
            story.begin("One of them, explained: txn show")
            print_explanation(story.out, explained)
        story.begin("Repair: txn fsck --repair")
        _, repaired = run_fsck(do_repair=True)
        print_summary(story.out, repaired, grace_ms=0)
        _, left = run_fsck(do_repair=False)
        after = count_contents(engine, story.tables)
    table = Table("in the tables")
    for heading in ("before repair", "after repair"):
        table.add_column(heading, justify="right")
    for name, number in before.items():
        table.add_row(name.replace("_", " "), f"{number:,}", f"{after[name]:,}")
    story.out.print(table)
    return {
        "found": tally_document(found, 0)["kinds"],
        "repaired": tally_document(repaired, 0),
        "left": tally_document(left, 0)["kinds"],
        "victim": None if victim is None else escape(victim),
        "before": before,
        "after": after,
    }


def count_contents(engine: Engine, tables: DemoTables) -> dict[str, int]:
    """Count the rows that a plain reader sees, the locks, and the unfinished transactions."""
    held = scan.summary(engine.context, [tables.flights.encode(), tables.indexes.encode()])
    return {
        "flights": count_rows(engine, tables.flights, ANCHOR),
        "index_entries": count_rows(engine, tables.indexes, ENTRY),
        "locks": held.locks,
        "unfinished_transactions": held.unfinished,
    }


def count_rows(engine: Engine, table: str, column: str) -> int:
    columns = [(FAMILY.encode(), column.encode())]
    return sum(1 for _ in engine.context.store.scan(table.encode(), columns=columns))


def load_and_prove(story: Story, csv: Path) -> tuple[int, Line, list[ProofCheck]]:
    """Run the job to its end. Return the number of flights, its counts and its checks."""
    flights, loaded, checks = 0, Line(), list[ProofCheck]()
    story.begin("Run the job to its end, and compare every cell with the source")
    with story.run_job(csv, "--reconcile") as (_, lines):
        for line in lines:
            match line.pop("event"):
                case "total":
                    flights = line["flights"]
                case "loaded":
                    loaded = line
                case "reconciled":
                    checks = [ProofCheck(**check) for check in line["checks"]]
    return flights, loaded, checks


def show_lines(lines: Iterator[Line], progress: Progress) -> Iterator[Line]:
    bar = progress.add_task("starting Spark", total=None)
    for line in lines:
        match line["event"]:
            case "total":
                progress.update(bar, description="loading", total=line["steps"])
            case "progress":
                progress.update(bar, completed=line["done"])
            case "loaded":
                progress.update(bar, description="proving", completed=progress.tasks[0].total)
        yield line


def show_checks(report: Report, out: Console) -> None:
    counted = {**report.loaded, "committed before": report.loaded["repeated"], "repeated": 0}
    shown = ", ".join(f"{number:,} {name}" for name, number in counted.items() if number)
    out.print(f"This run: {shown}.")
    table = Table("check", "expected", "found", "")
    for each in report.checks:
        verdict = Text("holds", "green") if each.holds else Text("broken", "red")
        table.add_row(each.name, f"{each.expected:,}", f"{each.found:,}", verdict)
    out.print(table)


def describe_end(report: Report) -> str:
    if not report.holds:
        return "NOT PROVEN: see the checks that are broken, and what fsck left."
    flights = f"all {report.flights:,} flights are there exactly once, with their index entries"
    repair = report.repair
    if repair is None:
        return f"Proven: {flights}."
    if not repair["found"]:
        return f"Killed part way, with no transaction half done: {flights}."
    forward, back = (repair["repaired"][name] for name in ("rolled_forward", "rolled_back"))
    return (
        f"Killed with {count_text(forward + back, 'transaction')} half done: {forward:,} rolled "
        f"forward, {back:,} rolled back, and {flights}."
    )
