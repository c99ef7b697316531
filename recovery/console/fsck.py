"""The pages of fsck: what crashed clients left behind, and its repair."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from recovery.console.jobs import NOT_KEPT, FsckReport, Jobs, JobUnderWayError, KeptFinding
from recovery.console.rendering import link_to, parse_number, parse_tables, render, respond
from recovery.findings import Kind, LeftAlone, NothingToDo, Repaired, Severity
from recovery.fsck import require_tables
from recovery.text import parse_duration
from txn.errors import InvalidRequestError

RESULTS = (Repaired, NothingToDo, LeftAlone)


def show_fsck(request: Request) -> Response:
    return respond("fsck.html", request, {"part": render_fsck(request)})


def render_fsck(request: Request) -> str:
    jobs: Jobs = request.app.state.console.jobs
    report = jobs.report
    facts = {
        "report": report,
        "is_running": jobs.is_running,
        "is_writing": jobs.is_writing,
        "counts": _list_counts(report) if report else [],
        "young": [(kind, report.young.counts[kind]) for kind in Kind if report.young.counts[kind]]
        if report
        else [],
        "groups": _list_groups(report) if report and not jobs.is_running else [],
        "report_only": Severity.REPORT_ONLY,
    }
    return render("fsck_part.html", request, facts)


def start_check(request: Request, form: Mapping[str, str]) -> Response:
    console = request.app.state.console
    grace_ms, tables = (
        parse_duration(form.get("grace") or "1m"),
        parse_tables(form.get("tables", "")),
    )
    require_tables(console.context, tables)
    console.jobs.start(grace_ms, tables)
    return RedirectResponse("/fsck", 303)


def cancel_job(request: Request, form: Mapping[str, str]) -> Response:
    """Cancel the job; cancelling a repair needs the right to repair."""
    jobs: Jobs = request.app.state.console.jobs
    if jobs.is_writing and not request.state.is_known:
        words = "nothing was cancelled: log in to end a repair"
        return respond("error.html", request, {"title": "Unauthorized", "words": words}, 401)
    jobs.cancel()
    return RedirectResponse("/fsck", 303)


def show_confirmation(request: Request) -> Response:
    """Show what a repair would do, and ask."""
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
    """Start the repair of one finding, or of all that a new check finds."""
    jobs: Jobs = request.app.state.console.jobs
    if jobs.is_running:
        raise JobUnderWayError("nothing was begun: a job is under way already")
    report = jobs.find_report(parse_number(form.get("check", "")))
    one = _find_one(report, form.get("finding"))
    if one is None:
        jobs.start(report.grace_ms, report.tables, repairs=True)
    else:
        jobs.start_one(report, one)
    return RedirectResponse("/fsck", 303)


def _list_counts(report: FsckReport) -> list[tuple[Kind, int, list[int]]]:
    found = [kind for kind in Kind if report.count(kind)]
    tally = report.tally
    return [(kind, report.count(kind), [tally[kind, each] for each in RESULTS]) for kind in found]


def _list_groups(report: FsckReport) -> list[tuple[Kind, list[KeptFinding]]]:
    kept = [(kind, [each for each in report.kept if each.finding.kind is kind]) for kind in Kind]
    return [(kind, some) for kind, some in kept if some]


def _find_one(report: FsckReport, number: str | None) -> KeptFinding | None:
    """Return the finding with this number; None for all of them."""
    if not number:
        return None
    at = parse_number(number)
    if at >= len(report.kept):
        raise InvalidRequestError(NOT_KEPT)
    return report.kept[at]
