"""What crashed clients left behind, and its repair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from recovery.console.jobs import NOT_KEPT, FsckReport, Jobs, JobUnderWayError, KeptFinding, is_left
from recovery.console.jobs import is_repaired as was_repaired
from recovery.console.rendering import link_to, parse_number, parse_tables, render, respond
from recovery.findings import Finding, Kind, LeftAlone, NothingToDo, Repaired, Severity
from recovery.fsck import require_tables
from recovery.text import parse_duration, time_text
from txn.errors import InvalidRequestError
from txn.text import escape, shorten

TIMES = ("since", "beat", "newest", "timestamp", "version", "below", "until")


class KindCount(NamedTuple):
    """How many findings of a kind there are, and what a repair of them came to."""

    kind: Kind
    found: int
    repaired: int
    moved_on: int
    left: int


class ListedFinding(NamedTuple):
    """A finding as it is shown. number: its place among those that are kept."""

    number: int
    finding: Finding
    facts: str
    kept: KeptFinding


def show_fsck(request: Request) -> Response:
    """The page."""
    return respond("fsck.html", request, {"part": render_fsck(request)})


def render_fsck(request: Request) -> str:
    """The part of it that stays up to date."""
    jobs: Jobs = request.app.state.console.jobs
    report = jobs.report
    facts = {
        "report": report,
        "is_running": jobs.is_running,
        "is_writing": jobs.is_writing,
        "counts": list_counts(report) if report else [],
        "young": [(kind, report.young.counts[kind]) for kind in Kind if report.young.counts[kind]]
        if report
        else [],
        "groups": list_groups(report) if report and not jobs.is_running else [],
        "was_repaired": was_repaired,
        "is_left": is_left,
        "report_only": Severity.REPORT_ONLY,
    }
    return render("fsck_part.html", request, facts)


def start_check(request: Request, form: Mapping[str, str]) -> Response:
    """Begin a check; it writes nothing."""
    console = request.app.state.console
    grace_ms, tables = (
        parse_duration(form.get("grace") or "1m"),
        parse_tables(form.get("tables", "")),
    )
    require_tables(console.context, tables)
    console.jobs.start(grace_ms, tables)
    return RedirectResponse("/fsck", 303)


def cancel_job(request: Request, form: Mapping[str, str]) -> Response:
    """Ask the job to end; of a repair only those may who may repair."""
    jobs: Jobs = request.app.state.console.jobs
    if jobs.is_writing and not request.state.is_known:
        words = "nothing was cancelled: log in to end a repair"
        return respond("error.html", request, {"title": "Unauthorized", "words": words}, 401)
    jobs.cancel()
    return RedirectResponse("/fsck", 303)


def show_confirmation(request: Request) -> Response:
    """Say what a repair would do, and ask."""
    jobs: Jobs = request.app.state.console.jobs
    given = request.query_params
    report = jobs.find_report(parse_number(given.get("check", "")))
    one = _find_one(report, given.get("finding"))
    facts = {
        "report": report,
        "one": one,
        "counts": report.count_repairable(),
        "refusal": jobs.find_refusal(),
        "back": link_to("/fsck/repair", check=str(report.number), finding=given.get("finding")),
    }
    return respond("fsck_repair.html", request, facts)


def start_repair(request: Request, form: Mapping[str, str]) -> Response:
    """Begin to repair one finding, or all that a fresh check finds."""
    jobs: Jobs = request.app.state.console.jobs
    if jobs.is_running:
        raise JobUnderWayError("nothing was begun: a job is under way already")
    report = jobs.find_report(parse_number(form.get("check", "")))
    one = _find_one(report, form.get("finding"))
    if one is None:
        jobs.start(report.grace_ms, report.tables, repairs=True)
    else:
        jobs.start_one(report, one.kept)
    return RedirectResponse("/fsck", 303)


def list_counts(report: FsckReport) -> list[KindCount]:
    """Return the kinds that were found, with what became of them."""
    results = (Repaired, NothingToDo, LeftAlone)
    counts = [
        KindCount(kind, report.count(kind), *(report.tally[kind, each] for each in results))
        for kind in Kind
    ]
    return [each for each in counts if each.found]


def list_groups(report: FsckReport) -> list[tuple[Kind, list[ListedFinding]]]:
    """Return the findings that are kept, by their kinds."""
    shown = [_show(number, kept) for number, kept in enumerate(report.kept)]
    order = list(Kind)
    shown.sort(key=lambda each: order.index(each.finding.kind))
    return [(kind, list(some)) for kind, some in groupby(shown, lambda each: each.finding.kind)]


def facts_text(finding: Finding) -> str:
    """Return what was seen, in a line."""
    holder = {"holder": finding.transaction} if finding.key and finding.transaction else {}
    facts: Sequence[tuple[str, object]] = [*holder.items(), *finding.facts.items()]
    return ", ".join(
        f"{name} {_fact_text(name, fact)}" for name, fact in facts if fact or name not in TIMES
    )


def _fact_text(name: str, fact: object) -> str:
    match fact:
        case bytes():
            return shorten(fact)
        case int() if name in TIMES:
            return time_text(fact)
        case _:
            return escape(str(fact).encode(errors="replace"))


def _show(number: int, kept: KeptFinding) -> ListedFinding:
    return ListedFinding(number, kept.finding, facts_text(kept.finding), kept)


def _find_one(report: FsckReport, number: str | None) -> ListedFinding | None:
    """Return the finding of that number, None for all of them."""
    if not number:
        return None
    at = parse_number(number)
    if at >= len(report.kept):
        raise InvalidRequestError(NOT_KEPT)
    return _show(at, report.kept[at])
