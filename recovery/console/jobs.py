"""Background checks and repairs, one at a time, which survive a closed browser; and doctor runs.

The findings of the last check are kept within limits, and a repair names one of them. Like the
command, it reads everything again, so a kept finding may be old. The totals of earlier jobs stay.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from recovery.console.progress import CheckProgress
from recovery.doctor import Diagnosis, examine
from recovery.findings import GRACE_MS, Finding, LeftAlone, Repaired, Result, Severity, Tally, judge
from recovery.fsck import check, compact, handle_findings, note_repair, repair
from recovery.scan import find_transaction
from txn.clock import Clock
from txn.errors import InvalidRequestError, TxnError
from txn.protocol.context import Context
from txn.protocol.protocols import require_features

LOG = logging.getLogger("txn.console")
MOST_REMEMBERED = 50
MOST_KEPT = 1_000
MOST_KEPT_BYTES = 16_000_000  # the limit of all kept findings: they include values of any size
NOT_KEPT = "the results of this check are no longer kept: check again"


class JobUnderWayError(TxnError):
    """Another check or repair is running; nothing was started."""

    retryable = True


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
    """A check, or a repair of all findings or of some (`marked`). client: the address that asked
    for it. table: the one that is being read. kept: the first findings, until the next check.
    trouble: why it ended early."""

    number: int
    began_ms: int
    client: str = ""
    repairs: bool = False
    grace_ms: int = GRACE_MS
    tables: tuple[bytes, ...] = ()
    marked: Sequence[KeptFinding] = ()
    ended_ms: int | None = None
    table: bytes = b""
    progress: CheckProgress | None = None
    tally: Tally = field(default_factory=Tally)
    kept: list[KeptFinding] = field(default_factory=list)
    trouble: str | None = None
    is_cancelled: bool = False
    _kept_bytes: int = 0

    def count_row(self, table: bytes) -> None:
        self.require_going()
        self.tally.rows += 1
        self.table = table

    @property
    def percent(self) -> int:
        if self.ended_ms is not None:
            return 100
        return self.progress.percent if self.progress else 0

    @property
    def outcome(self) -> str:
        if self.ended_ms is None:
            return "running"
        if self.trouble is not None or not self.marked:
            return self.trouble or "done"
        results = Counter(each.result.why for each in self.marked if each.result is not None)
        return ", ".join(f"{n}x {why}" if n > 1 else why for why, n in results.items())

    def reach(self, table: bytes, row: bytes) -> None:
        self.require_going()
        if self.progress is not None:
            self.progress.reach(table, row)

    def require_going(self) -> None:
        if self.is_cancelled:
            raise CancelledError

    def add(self, finding: Finding, result: Result | None = None) -> None:
        self.tally.add(finding, result)
        size = sum(len(fact) for fact in finding.facts.values() if isinstance(fact, bytes | str))
        if len(self.kept) < MOST_KEPT and self._kept_bytes + size <= MOST_KEPT_BYTES:
            self.kept.append(KeptFinding(len(self.kept), finding, result))
            self._kept_bytes += size


class Jobs:
    """report: the last check, or repair of all findings. history: the last jobs, newest first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._guard = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="txn-console-job")
        self._job: Future[None] | None = None
        self._numbers = 0
        self.report: FsckReport | None = None
        self.history: deque[FsckReport] = deque(maxlen=MOST_REMEMBERED)

    @property
    def is_running(self) -> bool:
        return self._job is not None and not self._job.done()

    @property
    def is_writing(self) -> bool:
        return self.is_running and self.history[0].repairs

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

    def find_repair(self, row_key: bytes) -> FsckReport | None:
        """Return the last repair of this transaction alone."""
        repaired = ((job, each.finding) for job in tuple(self.history) for each in job.marked)
        return next((job for job, finding in repaired if finding.transaction == row_key), None)

    def judge_transactions(self, row_keys: Sequence[bytes]) -> list[KeptFinding]:
        """Return what is to be repaired of transactions; InvalidRequestError if nothing is."""
        rows = (find_transaction(self._context, row_key) for row_key in dict.fromkeys(row_keys))
        found = [judge(row, self._context.clock.wall_ms()) for row in rows if row]
        due = [each for each in found if each and each.kind.severity is Severity.REPAIRABLE]
        if not due:
            words = "there is nothing to repair: it is over, or within the grace"
            raise InvalidRequestError(words, transaction=row_keys[0])
        return [KeptFinding(number, finding, None) for number, finding in enumerate(due)]

    def start(
        self, grace_ms: int, tables: tuple[bytes, ...], *, repairs: bool = False, client: str = ""
    ) -> None:
        self._begin(self._check, client, repairs, grace_ms=grace_ms, tables=tables)

    def start_some(self, marked: Sequence[KeptFinding], client: str = "") -> None:
        """Repair some findings, and note the result or trouble of each in it."""
        self._begin(self._repair_some, client, True, marked=marked)

    def wait(self, seconds: float) -> None:
        if self._job is not None:
            wait([self._job], seconds)

    def cancel(self) -> None:
        """Ask the job to end; its finished repairs remain."""
        if self.history:
            self.history[0].is_cancelled = True

    def close(self) -> None:
        """Stop the job: a check at once, a repair when it is done."""
        self.cancel()
        self._worker.shutdown()

    def _require_idle(self) -> None:
        if self.is_running:
            what = "a repair" if self.is_writing else "a check"
            raise JobUnderWayError(f"nothing was started: {what} is already running")

    def _begin(
        self, work: Callable[[FsckReport], None], client: str, repairs: bool, **facts: Any
    ) -> None:
        if repairs:
            require_features(self._context, self._context.rules)
        with self._guard:
            self._require_idle()
            self._numbers += 1
            now_ms = self._context.clock.wall_ms()
            report = FsckReport(self._numbers, now_ms, client, repairs, **facts)
            self.history.appendleft(report)
            if not report.marked:
                if self.report is not None:
                    self.report.kept = []
                self.report = report
            self._job = self._worker.submit(self._run, work, report)

    def _run(self, work: Callable[[FsckReport], None], report: FsckReport) -> None:
        """Do the work of a job, and note in its report why it failed."""
        report.trouble = "failed: see the log of the console"
        try:
            work(report)
        except CancelledError:
            report.trouble = "cancelled"
        except TxnError as error:
            report.trouble = str(error)
        except Exception:
            LOG.exception("a job failed")
            raise
        else:
            report.trouble = None
        finally:
            for each in report.marked:
                each.trouble = report.trouble if each.result is None else None
            report.ended_ms = self._context.clock.wall_ms()

    def _make_context(self, report: FsckReport) -> Context:
        """Return a context whose waits for the store end when the job is cancelled."""
        return replace(self._context, clock=EndingClock(self._context.clock, report))

    def _repair_some(self, report: FsckReport) -> None:
        for each in report.marked:
            each.result = None  # of an earlier repair
        for each in report.marked:
            report.require_going()
            each.result = repair(self._make_context(report), each.finding)
            report.tally.add(each.finding, each.result)

    def _check(self, report: FsckReport) -> None:
        context = self._make_context(report)
        report.progress = CheckProgress(context, report.tables)
        findings = check(
            context,
            grace_ms=report.grace_ms,
            scan=report.tables,
            on_row=report.count_row,
            young=report.tally.young,
            on_progress=report.reach,
        )
        for each in handle_findings(context, findings, do_repair=report.repairs):
            report.add(*each)
        report.require_going()
        if report.repairs:
            compact(context, tables=report.tables)
            note_repair(context)


class Doctor:
    """The results and the time of the last doctor run, if any. Runs do not overlap."""

    def __init__(self, context: Context, uri: str) -> None:
        self._context = context
        self._uri = uri
        self._guard = threading.Lock()
        self.diagnoses: tuple[Diagnosis, ...] = ()
        self.at_ms: int | None = None

    def run(self, tables: Sequence[bytes]) -> None:
        if not self._guard.acquire(blocking=False):
            raise JobUnderWayError("nothing was done: the doctor is already running")
        try:
            self.diagnoses = tuple(examine(self._context, tables, uri=self._uri))
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
