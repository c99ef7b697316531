"""The flights job: load, kill it part way, check and repair, load again, and prove the result.

The job runs in processes of its own (`job.py`); this is who starts it, kills it and shows what
happens. Check and repair are handed in, because the library knows nothing of the operator's side.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from txn.client.connect import connect
from txn.client.engine import Engine
from txn.demo.data import DAYS, FAMILY, DemoTables, WayName, tables_named, unpack
from txn.demo.looking import Sight, Sights, looking
from txn.demo.processes import Job, Line
from txn.demo.reconcile import ProofCheck
from txn.errors import InvalidRequestError
from txn.protocol.attempt import ProtocolName
from txn.protocol.rules import protocol_key

JOB = "txn.demo.job"


class ShownFinding(Protocol):
    """What the demonstration needs of a finding."""

    @property
    def kind(self) -> Any:
        """What was found; its value, meaning and remedy are texts."""


F = TypeVar("F", bound=ShownFinding)


@dataclass(frozen=True, slots=True)
class Recovery(Generic[F]):
    """The operator's side: `check` yields findings and never writes, `repair` acts on one."""

    check: Callable[[Engine, DemoTables], Iterator[F]]
    repair: Callable[[Engine, F], object]


@dataclass(frozen=True, slots=True)
class JobCrash:
    """Where the job was killed: transactions that its tasks had reported, or the parts that they
    had begun of one that is atomic; processes killed."""

    transactions: int
    workers: int
    processes: int
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What happened. `found` and `left`: findings by kind, before the repair and after it.
    `sights`: what readers saw of tables that were written atomically."""

    tables: DemoTables
    flights: int
    loaded: Line
    checks: Sequence[ProofCheck]
    crash: JobCrash | None = None
    found: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    sights: Mapping[str, Sights] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every check holds and the repair left nothing."""
        return all(check.holds for check in self.checks) and not self.left


def run_demo(
    uri: str,
    name: str,
    recovery: Recovery[F],
    console: Console,
    *,
    days: int,
    crash: bool,
    protocol: ProtocolName | None = None,
    by: WayName = "partition",
) -> Report:
    """Run the whole demonstration on a store that several processes can open; return its report.

    name: of its tables, which must be empty or absent. days: how many days of the year, from its
    first. crash: whether the job is killed part way. protocol: that of its transactions. by: the
    way into the tables.
    """
    if not 1 <= days <= DAYS:
        raise InvalidRequestError("days must be 1 to 365", days=days)
    if uri.startswith("memory:"):
        raise InvalidRequestError("the job's processes cannot share memory", store=uri)
    tables = tables_named(name)
    make_tables(uri, tables, protocol)
    with tempfile.TemporaryDirectory(prefix="hbase-txn-flights-") as place:
        folder = Path(place)
        csv = unpack(folder, days)
        asked = ["--store", uri, "--csv", str(csv), "--days", str(days)]
        asked += ["--tables", name, "--folder", place, "--by", by]
        killed, found, left = None, Counter[str](), Counter[str]()
        readers = looking(uri, tables, csv, days) if by == "atomic" else no_readers()
        with readers as sights:
            if crash:
                killed = load_and_kill(asked, folder, console)
                found, left = mend(uri, tables, recovery, console)
            flights, loaded, checks = load_and_prove([*asked, "--reconcile"], folder, console)
    checks += check_sights(sights)
    report = Report(tables, flights, loaded, checks, killed, found, left, sights)
    show_checks(report, console)
    return report


def no_readers() -> AbstractContextManager[Mapping[str, Sights]]:
    """Return what sees nothing."""
    return nullcontext({})


def make_tables(uri: str, tables: DemoTables, protocol: ProtocolName | None) -> None:
    """Make the tables, or raise InvalidRequestError for one that holds anything: what is left of
    an earlier run, or another's, would be counted."""
    with connect(uri, transactions=tables.transactions, protocol=protocol) as engine:
        for table in (tables.flights, tables.indexes):
            engine.ensure_table(table, [FAMILY])
        own = protocol_key(engine.context.table).row
        for table in astuple(tables):
            rows = engine.context.store.scan(table.encode())
            if any(row.row != own for row in rows):
                raise InvalidRequestError(
                    "the tables must be empty: choose another name", table=table
                )


def load_and_kill(asked: Sequence[str], folder: Path, console: Console) -> JobCrash:
    """Run the job; kill its Python workers when a third is in, and all of it at two thirds."""
    total = workers = 0
    last = Line(event="")
    console.print("first run: it will not live to its end")
    with Job(JOB, asked, folder) as job, bar(console) as show:
        for line in job.lines():
            total, done, last = how_many(line, total), show(line), line
            if total and not workers and done >= total / 3:
                workers = job.kill_workers()
                console.print(f"killed {workers} python workers; spark runs their tasks again")
            if total and done >= 2 * total / 3:
                break
        crash = JobCrash(count_ended(last), workers, job.kill(), last.get("parts", 0))
    parts = f", {crash.parts} parts begun" if crash.parts else ""
    console.print(
        f"killed the whole job: {crash.processes} processes, "
        f"{crash.transactions} transactions reported{parts}"
    )
    return crash


def how_many(line: Line, before: int) -> int:
    """Return how much there is to do, if the line tells: parts, or else transactions."""
    if line["event"] != "total":
        return before
    return int(line["parts"] if "parts" in line else line["transactions"])


def count_ended(line: Line) -> int:
    """Return how many transactions are in by what the job says."""
    return int(line.get("committed", 0) + line.get("repeated", 0))


def load_and_prove(
    asked: Sequence[str], folder: Path, console: Console
) -> tuple[int, Line, list[ProofCheck]]:
    """Run the job to its end; return how many flights there are, its counts and its checks."""
    flights, loaded, checks = 0, Line(), list[ProofCheck]()
    console.print("run to the end, then compare every cell with the source")
    with Job(JOB, asked, folder) as job, bar(console) as show:
        for line in job.lines():
            show(line)
            match line.pop("event"):
                case "total":
                    flights = line["flights"]
                case "loaded":
                    loaded = line
                case "reconciled":
                    checks = [ProofCheck(**check) for check in line["checks"]]
    return flights, loaded, checks


def mend(
    uri: str, tables: DemoTables, recovery: Recovery[F], console: Console
) -> tuple[Counter[str], Counter[str]]:
    """Check, repair each finding, and check again; return the findings before and after."""
    with connect(uri, transactions=tables.transactions) as engine:
        findings = list(recovery.check(engine, tables))
        show_findings(findings, console)
        for finding in findings:
            recovery.repair(engine, finding)
        left = Counter(finding.kind.value for finding in recovery.check(engine, tables))
    console.print(f"fsck repaired {len(findings)} findings; {left.total()} are left")
    return Counter(finding.kind.value for finding in findings), left


@contextmanager
def bar(console: Console) -> Iterator[Callable[[Line], int]]:
    """Show a bar; yield what takes a line of the job and returns how much is in: transactions, or
    the parts of those that have any."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("starting spark", total=None)

        def show(line: Line) -> int:
            done = int(line.get("parts", count_ended(line)))
            match line["event"]:
                case "total":
                    progress.update(task, description="loading", total=how_many(line, 0))
                    return 0
                case "loaded":
                    progress.update(task, description="proving", completed=progress.tasks[0].total)
                case "progress":
                    progress.update(task, completed=done)
            return done

        yield show


def show_findings(findings: Sequence[ShownFinding], console: Console) -> None:
    """Print a table of the findings by kind."""
    counted = Counter(finding.kind.value for finding in findings)
    kinds = {finding.kind.value: finding.kind for finding in findings}
    table = Table("found", "number", "what it is", "what repair does", title="fsck")
    for name, number in counted.most_common():
        table.add_row(name, str(number), kinds[name].meaning, kinds[name].remedy)
    console.print(table)


def check_sights(sights: Mapping[str, Sights]) -> Iterator[ProofCheck]:
    """Readers never saw a part of a table, nor none of it after all of it, and at last all."""
    for table, seen in sights.items():
        name = f"what readers saw of {table}"
        yield ProofCheck(f"{name}: a part", 0, seen.seen[Sight.PART])
        yield ProofCheck(f"{name}: all, and later less", 0, seen.lost)


def show_sights(sights: Mapping[str, Sights], console: Console) -> None:
    """Print how often readers saw what of each table."""
    for table, seen in sights.items():
        saw = ", ".join(f"{what} {count} times" for what, count in seen.document().items())
        console.print(f"readers saw of {table}: {saw}")


def show_checks(report: Report, console: Console) -> None:
    """Print what was counted, what it had to be, and whether it all holds."""
    loaded = ", ".join(f"{number} {name}" for name, number in report.loaded.items())
    console.print(f"the last run: {loaded}")
    show_sights(report.sights, console)
    table = Table("check", "expected", "found", "", title="every flight is there exactly once")
    for check in report.checks:
        verdict = "[green]holds[/]" if check.holds else "[red]broken[/]"
        table.add_row(check.name, str(check.expected), str(check.found), verdict)
    console.print(table)
