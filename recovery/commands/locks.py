"""`txn locks`: holders and waiters of Hive's locks, the locks of statements, explicit locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from recovery.commands import common
from recovery.commands.common import Duration, time_option
from recovery.text import count_text, duration_text, time_text
from txn.clock import SystemClock
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks import Lock, LockDenied, LockManager, Waiting, open_manager
from txn.locks.hive.model import DATABASE_SETTING, Column, Tables
from txn.locks.hive.model import Table as Described
from txn.locks.model import LockRequest, Mode, Path, path
from txn.stores import open_store
from txn.stores.options import split_uri

app = typer.Typer(help="Look at Hive's locks, take and release them.", no_args_is_help=True)

PathArgument = Annotated[
    list[str], typer.Argument(metavar="PATH", help="An object, such as sales/orders/day=1.")
]
WaitOption = Annotated[
    Duration | None,
    time_option("--wait", "How long to wait for others, such as 30s; by default, not at all."),
]
ExclusiveOption = Annotated[bool, typer.Option("--exclusive", "-x", help="Keep all others out.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Release others' explicit locks, too.")]
DatabaseOption = Annotated[str, typer.Option(metavar="NAME", help="Of tables named without one.")]
PartitionedOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TABLE=COLUMN,..", help="The columns that partition a table."),
]


@app.command("ls")
def ls(
    within: Annotated[
        str | None,
        typer.Argument(metavar="PATH", help="List only the locks on this object and within it."),
    ] = None,
    *,
    locks: common.LocksOption,
    extended: Annotated[
        bool, typer.Option("--extended", help="List waiting requests, too, with hosts and times.")
    ] = False,
    as_json: common.JsonOption = False,
) -> None:
    """List the locks, in the order of their objects and of the queue at each.

    Example: txn locks ls sales/orders --extended
    """
    with open_locks(locks) as manager:
        found = manager.locks(None if within is None else path(within))
    show_locks([lock for lock in found if extended or lock.granted], extended, as_json)


@app.command("explain")
def explain(
    sql: Annotated[str, typer.Argument(help="One or more statements.", metavar="SQL")],
    *,
    database: DatabaseOption = "default",
    partitioned: PartitionedOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Print which locks a statement needs, with their parents, without taking them.

    Example: txn locks explain "INSERT INTO archive SELECT * FROM orders"
    """
    with require_extra("locks"):
        from txn.locks.statements import explain_statements  # noqa: PLC0415
    known = read_tables(partitioned or (), database)
    show_needed(explain_statements(sql, {DATABASE_SETTING: database}, known), as_json)


@app.command("acquire")
def acquire(
    paths: PathArgument,
    *,
    locks: common.LocksOption,
    exclusive: ExclusiveOption = False,
    wait: WaitOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Take all of these locks or none. They stay until they are released.

    Example: txn locks acquire sales/orders/day=1 --exclusive --wait 30s
    """
    wanted = make_requests(paths, exclusive)
    with open_locks(locks) as manager, common.report_refusal(LockDenied):
        held = manager.hold(wanted, query="txn locks", explicit=True, waiting=waiting_for(wait))
    show_requests(held.requests, as_json)


@app.command("release")
def release(
    paths: PathArgument,
    *,
    locks: common.LocksOption,
    force: ForceOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Release our explicit locks on exactly these objects.

    Example: txn locks release sales/orders/day=1
    """
    with open_locks(locks) as manager:
        counts = {at: manager.release(at, force=force) for at in map(path, paths)}
    for at, count in counts.items():
        show_released(str(at), count, as_json)
    if not all(counts.values()):
        raise typer.Exit(common.FOUND)


@contextmanager
def open_locks(uri: str) -> Iterator[LockManager]:
    if split_uri(uri).scheme == "embedded":  # opening other stores creates nothing
        open_store(uri, SystemClock(), create=False).close()
    with closing(open_manager(uri)) as manager:
        yield manager


def make_requests(paths: Iterable[str], exclusive: bool) -> list[LockRequest]:
    mode = Mode.EXCLUSIVE if exclusive else Mode.SHARED
    return [LockRequest(path(each), mode) for each in paths]


def waiting_for(wait_ms: int | None) -> Waiting:
    if wait_ms is None:
        return Waiting(retries=0)
    return Waiting(retries=wait_ms // 100, pause_ms=200, deadline_ms=wait_ms)


def read_tables(partitioned: Iterable[str], database: str) -> Tables:
    """Return the catalogue of tables given as `db.table=column,column`."""
    known = {}
    for given in partitioned:
        name, equals, columns = given.lower().partition("=")
        if not equals:
            raise InvalidRequestError("write TABLE=COLUMN,COLUMN", given=given)
        parts = name.split(".") if "." in name else [database.lower(), name]
        known[Path(tuple(parts))] = Described(tuple(map(Column, columns.split(","))))
    return Tables(known)


def show_requests(requests: Iterable[LockRequest], as_json: bool) -> None:
    for request in requests:
        mode = request.mode.name.lower()
        document = {"path": str(request.path), "mode": mode}
        common.print_result(as_json, document, f"{mode:9} {request.path}")


def show_needed(requests: Sequence[LockRequest], as_json: bool) -> None:
    """Print the locks that a statement needs. Warn of tables locked as shared without a partition,
    which does not do what it seems to."""
    show_requests(requests, as_json)
    parents = {parent for request in requests for parent in request.path.parents}
    for at, mode in ((request.path, request.mode) for request in requests):
        if mode is Mode.SHARED and len(at.parts) == 2 and at not in parents:
            common.print_note(f"keeps nobody out of the partitions of {at}, if it has any")
    if not requests and not as_json:
        common.print_line("no locks are needed")


def show_released(name: str, count: int, as_json: bool) -> None:
    what = count_text(count, "lock") if count else "no lock of ours"
    common.print_result(as_json, {"path": name, "released": count}, f"released {what} on {name}")


def show_locks(locks: Sequence[Lock], extended: bool, as_json: bool) -> None:
    """Print locks with the place of each in the queue of its object: 0: held, 1: next."""
    waiting: Counter[Path] = Counter()
    rows = []
    for lock in locks:
        owner, at, mode = lock.owner, lock.request.path, lock.request.mode.name.lower()
        waiting[at] += not lock.granted
        place = 0 if lock.granted else waiting[at]
        if as_json:
            document = {"path": str(at), "mode": mode, "held": lock.granted, "place": place}
            document |= {"holder": owner.name, "host": owner.host, "query": owner.query}
            document |= {"since": lock.since_ms, "explicit": lock.explicit, "token": lock.token}
            common.print_json(document)
        row = [str(at), mode, f"waits, {place}" if place else "held", owner.name]
        if extended:
            age_ms = max(0, SystemClock().wall_ms() - lock.since_ms)
            kind = "explicit" if lock.explicit else "session"
            row += [owner.host, time_text(lock.since_ms), duration_text(age_ms), kind]
            row += [str(lock.token), " ".join(owner.query.split())]
        rows.append(row)
    if not as_json:
        extras = ("host", "since", "for", "kind", "token", "query") if extended else ()
        common.print_table(("object", "mode", "state", "holder", *extras), rows)
