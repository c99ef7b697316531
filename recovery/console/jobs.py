"""Background checks and repairs, one at a time, which survive a closed browser; and doctor runs.

The findings of the last check are kept within limits, and a repair names one of them. Like the
command, it reads everything again, so a kept finding may be old.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from recovery.doctor import Diagnosis, examine
from recovery.findings import (
    GRACE_MS,
    Finding,
    Kind,
    LeftAlone,
    Repaired,
    Result,
    Severity,
    Tally,
)
from recovery.fsck import check, compact, handle_findings, repair
from txn.clock import Clock
from txn.errors import InvalidRequestError, TxnError
from txn.protocol.context import Context
from txn.protocol.protocols import require_features

LOG = logging.getLogger("txn.console")
MOST_KEPT = 1_000
MOST_KEPT_BYTES = 16_000_000
"""The limit of all kept findings: they include values of any size."""

NOT_KEPT = "what this check found is not known any more: look again"


class JobUnderWayError(TxnError):
    """Another check or repair is running; nothing was started."""


class CancelledError(Exception):
    """The job was cancelled."""


@dataclass(slots=True)
class KeptFinding:
    """A finding with its number and result. trouble: why its repair failed."""

    number: int
    finding: Finding
    result: Result | None
    trouble: str | None = None

    @property
    def is_left(self) -> bool:
        return self.result is None or isinstance(self.result, LeftAlone)

    @property
    def is_repaired(self) -> bool:
        return isinstance(self.result, Repaired)


@dataclass(slots=True)
class FsckReport:
    """A check, or a repair of all findings. table: the one that is being read. kept: the first
    findings. trouble: why it ended early."""

    number: int
    began_ms: int
    repairs: bool = False
    grace_ms: int = GRACE_MS
    tables: tuple[bytes, ...] = ()
    ended_ms: int | None = None
    table: bytes = b""
    tally: Tally = field(default_factory=Tally)
    kept: list[KeptFinding] = field(default_factory=list)
    trouble: str | None = None
    is_cancelled: bool = False
    _kept_bytes: int = 0

    def count_row(self, table: bytes) -> None:
        self.require_going()
        self.tally.rows += 1
        self.table = table

    def require_going(self) -> None:
        """Raise CancelledError if the job was cancelled."""
        if self.is_cancelled:
            raise CancelledError

    def add(self, finding: Finding, result: Result | None = None) -> None:
        self.tally.add(finding, result)
        size = sum(len(fact) for fact in finding.facts.values() if isinstance(fact, bytes | str))
        if len(self.kept) < MOST_KEPT and self._kept_bytes + size <= MOST_KEPT_BYTES:
            self.kept.append(KeptFinding(len(self.kept), finding, result))
            self._kept_bytes += size

    def count_repairable(self) -> Mapping[Kind, int]:
        """Return how many findings of each kind a repair would act on."""
        kinds = self.tally.count_kinds().items()
        return {kind: n for kind, n in kinds if kind.severity is not Severity.REPORT_ONLY}


class Jobs:
    """The running job, and the report of the last check or repair."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="txn-console-job")
        self._job: Future[None] | None = None
        self._numbers = 0
        self.report: FsckReport | None = None
        self.is_writing = False

    @property
    def is_running(self) -> bool:
        return self._job is not None and not self._job.done()

    def find_refusal(self) -> str | None:
        """Return why this store cannot be repaired; None if it can."""
        try:
            require_features(self._context, self._context.rules)
        except InvalidRequestError as error:
            return str(error)
        return None

    def find_report(self, number: int) -> FsckReport:
        """Return the last check, if it has ended and has this number."""
        self._require_idle()
        report = self.report
        if report is None or report.number != number or report.repairs:
            raise InvalidRequestError(NOT_KEPT)
        return report

    def start(self, grace_ms: int, tables: tuple[bytes, ...], *, repairs: bool = False) -> None:
        self._numbers += 1
        now_ms = self._context.clock.wall_ms()
        report = FsckReport(self._numbers, now_ms, repairs, grace_ms, tables)
        self._begin(lambda: self._check(report), report)

    def start_one(self, report: FsckReport, kept: KeptFinding) -> None:
        def work() -> None:
            report.require_going()
            kept.result = repair(self._make_context(report), kept.finding)

        self._begin(work, report, kept)

    def cancel(self) -> None:
        """Ask the job to end; its finished repairs remain."""
        if self.report is not None:
            self.report.is_cancelled = True

    def close(self) -> None:
        """Stop the job: a check at once, a repair when it is done."""
        self.cancel()
        self._worker.shutdown()

    def _require_idle(self) -> None:
        if self.is_running:
            what = "a repair" if self.is_writing else "a check"
            raise JobUnderWayError(f"nothing was begun: {what} is under way already")

    def _begin(
        self, work: Callable[[], None], report: FsckReport, one: KeptFinding | None = None
    ) -> None:
        """Start a job. one: the only finding that it repairs."""
        writes = report.repairs or one is not None
        if writes:
            require_features(self._context, self._context.rules)
        with self._guard:
            self._require_idle()
            self.report, self.is_writing = report, writes
            report.is_cancelled = False
            self._job = self._worker.submit(self._run, work, report, one or report)

    def _run(
        self, work: Callable[[], None], report: FsckReport, subject: FsckReport | KeptFinding
    ) -> None:
        """Do the work of a job, and note in its subject why it failed."""
        subject.trouble = "it failed; the log of the console says why"
        try:
            work()
        except CancelledError:
            subject.trouble = "it was cancelled"
        except TxnError as error:
            subject.trouble = str(error)
        except Exception:
            LOG.exception("a job failed")
            raise
        else:
            subject.trouble = None
        finally:
            report.ended_ms = report.ended_ms or self._context.clock.wall_ms()

    def _make_context(self, report: FsckReport) -> Context:
        """Return a context whose waits for the store end when the job is cancelled."""
        return replace(self._context, clock=EndingClock(self._context.clock, report))

    def _check(self, report: FsckReport) -> None:
        context = self._make_context(report)
        findings = check(
            context,
            grace_ms=report.grace_ms,
            scan=report.tables,
            on_row=report.count_row,
            young=report.tally.young,
            on_progress=lambda table, row: report.require_going(),
        )
        for each in handle_findings(context, findings, do_repair=report.repairs):
            report.add(*each)
        report.require_going()
        if report.repairs:
            compact(context, tables=report.tables)


class Doctor:
    """The results and the time of the last doctor run, if any. Runs do not overlap."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = threading.Lock()
        self.diagnoses: tuple[Diagnosis, ...] = ()
        self.at_ms: int | None = None

    def run(self, tables: Sequence[bytes]) -> None:
        if not self._guard.acquire(blocking=False):
            raise JobUnderWayError("nothing was done: the doctor is at work already")
        try:
            self.diagnoses = tuple(examine(self._context, tables))
            self.at_ms = self._context.clock.wall_ms()
        finally:
            self._guard.release()


class EndingClock:
    """A clock whose waits end when the job is cancelled."""

    def __init__(self, clock: Clock, report: FsckReport) -> None:
        self.inner = clock
        self.wall_ms = clock.wall_ms
        self.monotonic_ms = clock.monotonic_ms
        self._report = report

    def sleep_ms(self, duration_ms: int) -> None:
        self._report.require_going()
        self.inner.sleep_ms(duration_ms)
