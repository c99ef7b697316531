"""The pages: the facts that each one shows, and the work that its forms ask for.

The facts of a page are the variables of its template. `wrong`: why its criteria cannot be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request

from recovery.console import rendering
from recovery.console.auth import find_client
from recovery.console.charts import TONES, draw_bars, draw_timeline, name_work
from recovery.console.downloads import Download, Write
from recovery.console.jobs import NOT_KEPT, KeptFinding
from recovery.console.keys import list_table_keys, read_key_details
from recovery.console.locks import MOST_SHOWN
from recovery.console.rendering import Facts, link_to
from recovery.console.search import MOST_DOWNLOADED, UNKNOWN, Search
from recovery.console.state import Console
from recovery.console.statistics import MINUTE_MS, MINUTES, OUTCOMES, Hour, Latency, measure_latency
from recovery.findings import GRACE_MS, RESULTS, Kind, Severity, Tally, find_alive_ms
from recovery.fsck import require_tables
from recovery.inspect import explain
from recovery.search import COUNT, Query
from recovery.text import parse_duration
from txn.errors import InvalidRequestError, StoreError, TableUnavailable
from txn.model import Key
from txn.protocol.row import TransactionRow, created_ms, is_row_key
from txn.protocol.statuses import FENCED_STEPS, STEPS, Status
from txn.stores.options import hide_login
from txn.text import unescape

Form = QueryParams

SHOWN = 10
BESIDE = (Status.PART, Status.ABORTING, Status.ABORTED)  # not on the way to a commit
FIELDS = {
    "id": "ID",
    "key": "Key",
    "table": "Table",
    "status": "Status",
    "label": "Label",
    "older": "In status for at least",
    "newer": "In status for at most",
    "parts": "Parts",
    "sort": "Sorted by",
}
"""The criteria of a search: their names in an address, and their labels."""

SORTS: Mapping[str, tuple[str, Callable[[TransactionRow], Any]]] = {
    "id": ("Transaction", lambda row: rendering.name_transaction(row.row_key)),
    "status": ("Status", lambda row: str(row.status or "")),
    "age": ("#In status", lambda row: -(row.since or row.newest)),
    "started": ("Started", lambda row: created_ms(row.row_key)),
    "keys": ("Keys", lambda row: row.buffer.request.keys if row.buffer else ()),
    "owner": ("Owner", lambda row: row.owner),
    "labels": ("Labels or abort reason", rendering.list_remarks),
}
"""The columns of a search, and what they are sorted by; `-` before the name reverses the order."""

MOST_KEYS = 200
STATUSES = {
    "unfinished": frozenset(each for each in Status if not each.is_finished),
    **{str(each): frozenset({each}) for each in Status},
    "none": frozenset({None}),
}
SEARCH_AGAIN_MS = 100  # the time (ms) from an update of a running search to the next
SHORT_S = 2.0  # how long (s) a page waits for the repair of one transaction


def find_console(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


# ------------------------------------------------------------------------------- the overview


def show_overview(request: Request) -> Facts:
    console = find_console(request)
    background = console.background
    hour, unfinished, servers = background.hour, background.unfinished, background.servers.last
    known = {each.began_ms // MINUTE_MS: each for each in hour.minutes}
    began = hour.as_of // MINUTE_MS - MINUTES + 1
    minutes = [known.get(at) for at in range(began, began + MINUTES)]  # None: not read yet
    columns = [[m.outcomes[name] / 60 if m else 0.0 for name in OUTCOMES] for m in minutes]
    bars, lines = draw_bars(columns, ("good", "bad", "warn"))
    read_ms = unfinished.read_ms if unfinished else hour.as_of
    steps = FENCED_STEPS if console.context.rules.locks_rows else STEPS
    waiting: dict[str, int] = {}
    if unfinished is not None:
        due = (str(each) for each in Status if each in steps and not each.is_finished)
        waiting = {**dict.fromkeys(due, 0), **unfinished.statuses}
    rare = (Status.LOCKED,) if console.context.rules.locks_rows else ()
    path = [each for each in steps if each not in (*BESIDE, *rare)]
    return {
        "hour": hour,
        "is_partial": hour.is_partial,
        "last": hour.last,
        "bars": bars,
        "lines": lines,
        "minutes": [each for each in reversed(minutes) if each],
        "began": began * MINUTE_MS,
        "funnel": make_funnel(hour, path),
        "unfinished": unfinished,
        "waiting": list(waiting.items()),
        "unknown": UNKNOWN,
        "waiting_for": background.owners.waiting,
        "oldest": [(row, *describe_owner(row, read_ms)) for row in background.oldest],
        "shown": SHOWN,
        "servers": servers,
        "latencies": (servers and servers.phases) or list_latencies(hour),
        "trouble": background.trouble,
    }


def describe_owner(row: TransactionRow, now_ms: int) -> tuple[int, int | None, str]:
    """Return how long (ms) an unfinished transaction has been silent, how many keys it has (if its
    row says so), and whether its owner counts as alive. now_ms: when it was read."""
    silent_ms = max(0, now_ms - find_alive_ms(row, now_ms, GRACE_MS))
    if row.buffer is None:
        return silent_ms, None, "unknown: the row cannot be decoded"
    is_late = silent_ms > row.lock_ttl_ms
    owner = "dead: lock TTL expired" if is_late else "alive: within its lock TTL"
    return silent_ms, len(row.buffer.request.keys), owner


def make_funnel(hour: Hour, path: Sequence[Status]) -> list[tuple[str, int, float, str]]:
    """Return each status of a path, how many of the hour's transactions reached it, which share of
    them, and the color; at the end, how many left the path."""
    counts = sum((minute.statuses for minute in hour.minutes), Counter[str]())
    begun = max(1, counts.total())
    steps = []
    for index, status in enumerate(path):
        reached = sum(counts[str(each)] for each in path[index:])
        number = reached if index else counts.total()
        steps.append((str(status), number, number / begun, TONES.get(status, "warn")))
    left = counts[str(Status.ABORTING)] + counts[str(Status.ABORTED)]
    return [*steps, (str(Status.ABORTED), left, left / begun, "bad")]


def list_latencies(hour: Hour) -> list[Latency]:
    return [measure_latency(name_work(*steps), times) for steps, times in hour.phases.items()]


# ------------------------------------------------------------------- transactions and keys


def show_search(request: Request) -> Facts:
    """Show a search; without criteria, the newest transactions."""
    given = _read_fields(request)
    asked = {name: value for name, value in given.items() if value}
    before = request.query_params.get("before")
    facts = {"given": given, "fields": FIELDS, "statuses": STATUSES, "sorts": SORTS}
    facts |= {"live": None, "wrong": None, "most": MOST_DOWNLOADED}
    facts |= {"downloaded": {**asked, "before": before}}
    try:
        search = find_console(request).searches.find(*_read_query(request), again=True)
    except InvalidRequestError as error:
        return facts | {"wrong": str(error), "asked": asked}
    if search.is_running:
        facts["live"] = link_to("/live/transactions", **asked, before=before)
    return facts | _describe_search(request, search)


def continue_search(request: Request) -> Facts:
    search = find_console(request).searches.find(*_read_query(request), again=False)
    return _describe_search(request, search)


def show_transaction(request: Request) -> Facts:
    row_key = unescape(request.query_params.get("id", ""))
    if not is_row_key(row_key):
        raise InvalidRequestError("not a transaction's row key", given=row_key)
    console = find_console(request)
    limits = replace(console.limits, rows=MOST_KEYS)
    found = explain(console.context, row_key, limits=limits, most_parts=MOST_KEYS)
    if found is None:
        raise HTTPException(404, "no such transaction; its retention may have ended")
    return {
        "found": found,
        "timeline": draw_timeline(found, console.context.clock.wall_ms()),
        "changes": found.changes[:MOST_KEYS],
        "assertions": list(zip(found.request.assertions, found.verdicts, strict=True))[:MOST_KEYS],
        "most": MOST_KEYS,
        "last": console.jobs.find_repair(row_key),
        "is_repairable": found.finding is not None
        and found.finding.kind.severity is Severity.REPAIRABLE,
    }


def show_key(request: Request) -> Facts:
    """Show one key, or the keys of a table from a row on; else the tables."""
    console = find_console(request)
    names = ("key", "table", "start")
    key, table, start = (request.query_params.get(name, "").strip() for name in names)
    facts: Facts = {"given": key, "table": table, "start": start}
    facts |= dict.fromkeys(("details", "page", "wrong", "further", "tables", "unlisted"))
    try:
        if key:
            details = read_key_details(console.context, Key.parse(key), console.limits)
            rows = details.transactions.rows
            writers = {row.plan.timestamp: row.row_key for row in rows if row.plan}
            facts |= {"details": details, "writers": writers}
        elif table:
            at = unescape(table), unescape(start)
            page = list_table_keys(console.context, *at, console.limits)
            further = link_to("/key", table=table, start=page.next) if page.next else None
            facts |= {"page": page, "further": further}
        else:
            try:
                facts["tables"], facts["number_of_tables"] = console.tables.read()
            except StoreError as error:  # the rest of the page does not need them
                facts["unlisted"] = str(error)
    except (InvalidRequestError, TableUnavailable) as error:
        facts["wrong"] = str(error)
    return facts


def _read_fields(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in FIELDS}


def _read_query(request: Request) -> tuple[Query, bytes | None]:
    """Return the query of an address, and the cursor where its results begin."""
    given, before = _read_fields(request), request.query_params.get("before")
    for name, known in {
        "status": STATUSES,
        "sort": [*SORTS, *(f"-{sort}" for sort in SORTS)],
    }.items():
        if given[name] and given[name] not in known:
            raise InvalidRequestError(f"no such {name}", given=given[name])
    query = Query(
        id_=unescape(given["id"]),
        key=Key.parse(given["key"]) if given["key"] else None,
        table=unescape(given["table"]) or None,
        statuses=STATUSES.get(given["status"]),
        label=given["label"] or None,
        older_than_ms=parse_duration(given["older"]) if given["older"] else None,
        newer_than_ms=parse_duration(given["newer"]) if given["newer"] else None,
        with_parts=bool(given["parts"]),
    )
    return query, None if before is None else unescape(before)


def download_search(request: Request, write: Write) -> Iterator[str]:
    """Return the text of a search's results. The first page is read now, to answer an error."""
    console = find_console(request)
    pages = console.searches.read_pages(*_read_query(request))
    return write(Download(chain([next(pages)], pages)), console.context.clock.wall_ms())


def _describe_search(request: Request, search: Search) -> Facts:
    further = None
    asked = {name: value for name, value in _read_fields(request).items() if value}
    if search.page.next is not None and not search.is_running:
        further = link_to("/transactions", **asked, before=search.page.next)
    again_ms = SEARCH_AGAIN_MS if search.is_running else None
    sort, rows, columns = asked.get("sort", ""), search.rows, {}
    for name, (heading, by) in SORTS.items():
        order = {name: "ascending", f"-{name}": "descending"}.get(sort, "none")
        if order != "none":
            rows = sorted(rows, key=by, reverse=order == "descending")
        changed = asked | {"sort": f"-{name}" if order == "ascending" else name}
        before = request.query_params.get("before")
        columns[heading] = link_to("/transactions", **changed, before=before), order
    now_ms = find_console(request).context.clock.wall_ms()
    due = {row.row_key for row in rows if rendering.find_attention(row, now_ms) == "left"}
    facts = {"search": search, "page": search.page, "further": further, "again_ms": again_ms}
    return facts | {"rows": rows, "asked": asked, "columns": columns, "due": due}


# ----------------------------------------------------------------- locks, leases, the doctor


def show_locks(request: Request) -> Facts:
    console = find_console(request)
    manager = console.settings.locks
    name = None if manager is None else hide_login(manager).partition("?")[0]
    return {"tree": console.locks.read(), "most": MOST_SHOWN, "manager": name}


def show_leases(request: Request) -> Facts:
    return {"leases": find_console(request).leases.read(), "most": MOST_SHOWN}


def show_doctor(request: Request) -> Facts:
    """Show the last results of the doctor. It writes to the store, so a run must be asked for."""
    doctor = find_console(request).doctor
    return {"diagnoses": doctor.diagnoses, "at_ms": doctor.at_ms}


def run_doctor(request: Request, form: Form) -> None:
    find_console(request).doctor.run(rendering.parse_tables(form.get("tables", "")))


# --------------------------------------------------------------------------------------- fsck


def show_fsck(request: Request) -> Facts:
    jobs = find_console(request).jobs
    report, is_running, history = jobs.report, jobs.is_running, tuple(jobs.history)
    facts: Facts = {"report": report, "is_running": is_running, "is_writing": jobs.is_writing}
    is_partial = is_running and history[0].marked
    facts |= {"history": history, "percent": None if is_partial or not report else report.percent}
    tally, kept = (report.tally, report.kept) if report else (Tally(), [])
    kept = [] if is_running else kept
    groups = [(kind, [each for each in kept if each.finding.kind is kind]) for kind in Kind]
    return facts | {
        "report_only": Severity.REPORT_ONLY,
        "counts": [
            (kind, found, [tally.counts[kind, each] for each in RESULTS])
            for kind, found in tally.count_kinds().items()
        ],
        "young": [(kind, tally.young.counts[kind]) for kind in Kind if tally.young.counts[kind]],
        "groups": [(kind, some) for kind, some in groups if some],
    }


def show_repair(request: Request) -> Facts:
    """Show what a repair would do, and ask."""
    jobs, asked = find_console(request).jobs, _find_asked(request, request.query_params)
    given = request.query_params.multi_items()
    names = [each for each in given if each[0] in ("check", "finding", "left", "id")]
    facts = {"refusal": jobs.find_refusal(), "back": f"/fsck/repair?{urlencode(names)}"}
    return {**asked._asdict(), "names": names, **facts}


def start_check(request: Request, form: Form) -> None:
    console = find_console(request)
    grace_ms = parse_duration(form.get("grace") or "1m")
    tables = rendering.parse_tables(form.get("tables", ""))
    require_tables(console.context, tables)
    console.jobs.start(grace_ms, tables, client=find_client(request))


def cancel_job(request: Request, form: Form) -> None:
    """Cancel the job; cancelling a repair needs the right to repair."""
    jobs = find_console(request).jobs
    if jobs.is_writing and not request.state.is_known:
        raise HTTPException(401, "nothing was cancelled: log in to end a repair")
    jobs.cancel()


def start_repair(request: Request, form: Form) -> str | None:
    """Start the repair of one finding, or of all that a new check finds. Return the page of the
    transaction if it was asked for there, once the repair is over or takes long."""
    jobs, client = find_console(request).jobs, find_client(request)
    asked = _find_asked(request, form)
    if not asked.marked:
        jobs.start(asked.grace_ms, asked.tables, repairs=True, client=client)
        return None
    jobs.start_some(asked.marked, client)
    if len(form.getlist("id")) != 1:
        return None
    jobs.wait(SHORT_S)
    return link_to("/transaction", id=form["id"])


class AskedRepair(NamedTuple):
    """A repair of marked findings, or of all that a new check finds. counts: how many there were of
    each kind; origin: at the last "check", or "left" by dead clients."""

    marked: Sequence[KeptFinding] = ()
    counts: Mapping[Kind, int] = {}
    grace_ms: int = GRACE_MS
    tables: tuple[bytes, ...] = ()
    origin: str = "check"


def _find_asked(request: Request, given: QueryParams) -> AskedRepair:
    """Return the repair that is asked for: of transactions, of what dead clients left, or of the
    check and the findings with these numbers."""
    console = find_console(request)
    if "marked" in given and not (given.get("id") or given.get("finding")):
        raise InvalidRequestError("nothing was marked, so there is nothing to repair")
    if ids := given.getlist("id"):
        if len(ids) > COUNT:  # each row may have ten megabytes
            raise InvalidRequestError("too many are marked", given=len(ids), limit=COUNT)
        return AskedRepair(console.jobs.judge_transactions([*map(unescape, ids)]))
    if given.get("left"):
        left = console.background.owners.left
        if left is None or not left.total:
            raise InvalidRequestError("there is nothing to repair that dead clients have left")
        return AskedRepair(counts=left.kinds, origin="left")
    report = console.jobs.find_report(rendering.parse_number(given.get("check", "")))
    numbers = [*map(rendering.parse_number, given.getlist("finding"))]
    if not numbers:
        counts = report.tally.count_repairable()
        return AskedRepair((), counts, report.grace_ms, report.tables)
    if max(numbers) >= len(report.kept):
        raise InvalidRequestError(NOT_KEPT)
    return AskedRepair([report.kept[at] for at in dict.fromkeys(numbers)])
