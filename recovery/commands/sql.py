"""`txn sql`: statements about locks, as Hive has them, and about leases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from recovery.commands.common import FOUND, JsonOption, MaybeLocksOption, parse_setting
from recovery.commands.leases import MaybeLeasesOption, open_service, show_dropped, show_leases
from recovery.commands.locks import (
    DatabaseOption,
    ForceOption,
    PartitionedOption,
    WaitOption,
    open_locks,
    read_tables,
    refusals,
    show_locks,
    show_needed,
    show_released,
    show_requests,
    waiting_for,
)
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks import LockManager, Waiting
from txn.locks.hive.model import DATABASE_SETTING
from txn.locks.hive.settings import from_hive

if TYPE_CHECKING:
    from txn.leases import statements as about_leases
    from txn.leases.service import LeaseService
    from txn.locks.statements import ReleaseLocks, ShowLocks, TakeLock


def sql(
    statements: Annotated[
        str,
        typer.Argument(
            help="One or more statements, separated by semicolons.", metavar="STATEMENTS"
        ),
    ],
    *,
    locks: MaybeLocksOption = None,
    leases: MaybeLeasesOption = None,
    database: DatabaseOption = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of Hive, such as hive.lock.numretries=3; repeatable.",
        ),
    ] = None,
    partitioned: PartitionedOption = None,
    wait: WaitOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run statements about locks and leases.

    They are SHOW LOCKS, EXPLAIN LOCKS, LOCK, UNLOCK, SHOW LEASE and DROP FORCE LEASE. USE and SET
    apply to the statements after them.

    Example: txn sql "SHOW LOCKS sales.orders EXTENDED"
    """
    with require_extra("locks"):
        from txn.leases import statements as spoken  # noqa: PLC0415
        from txn.locks.statements import ExplainLocks  # noqa: PLC0415
    settings = dict(map(parse_setting, setting or ()))
    known = read_tables(partitioned or (), database)
    asked = spoken.parse_lease_statement(
        statements, {**settings, DATABASE_SETTING: database}, known
    )
    if not asked:
        raise InvalidRequestError("no statement to run", given=statements)
    waiting = from_hive(settings, waiting_for(wait))
    with ExitStack() as stack:
        manager = cache(lambda: stack.enter_context(open_locks(_name_locks(locks))))
        service = cache(lambda: stack.enter_context(open_service(leases)))
        # All that they need is opened before the first of them is run.
        runs: list[Callable[[], None]] = []
        for each in asked:
            if isinstance(each, spoken.Statement):
                runs.append(partial(_run_on_leases, each, service(), as_json))
            elif isinstance(each, ExplainLocks):
                runs.append(partial(show_needed, each.requests, as_json))
            else:
                runs.append(partial(_run_on_locks, each, manager(), waiting, force, as_json))
        for run in runs:
            run()


def _name_locks(uri: str | None) -> str:
    if not uri:
        raise InvalidRequestError("name a lock manager: --locks or TXN_LOCKS")
    return uri


def _run_on_leases(statement: about_leases.Statement, service: LeaseService, as_json: bool) -> None:
    from txn.leases.statements import DropLeases, ShowLeases  # noqa: PLC0415

    match statement:
        case ShowLeases():
            show_leases(statement.run(service), service.now(), as_json)
        case DropLeases(within):
            show_dropped("" if within is None else str(within), statement.run(service), as_json)
        case _:
            assert_never(statement)


def _run_on_locks(
    statement: ShowLocks | TakeLock | ReleaseLocks,
    manager: LockManager,
    waiting: Waiting,
    force: bool,
    as_json: bool,
) -> None:
    from txn.locks.statements import ReleaseLocks, ShowLocks, TakeLock  # noqa: PLC0415

    match statement:
        case ShowLocks(_, extended):
            show_locks(statement.run(manager), extended, as_json)
        case TakeLock():
            with refusals():
                taken = statement.run(manager, waiting)
            show_requests(taken, as_json)
        case ReleaseLocks(path):
            count = manager.release(path, force=force)
            show_released(str(path), count, as_json)
            if not count:
                raise typer.Exit(FOUND)
        case _:
            assert_never(statement)
