"""`txn sql`: statements about locks, as in Hive, and about leases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, assert_never

import typer
from typer import Argument, Option

from recovery.commands import common
from recovery.commands import leases as lease_commands
from recovery.commands import locks as lock_commands
from txn.errors import InvalidRequestError
from txn.host.extras import require_extra
from txn.locks import LockDenied, LockManager, Waiting
from txn.locks.hive.model import DATABASE_SETTING
from txn.locks.hive.settings import from_hive

if TYPE_CHECKING:
    from txn.leases.service import LeaseService
    from txn.locks.statements import DropLeases, ReleaseLocks, ShowLeases, ShowLocks, TakeLock


def sql(
    statements: str = Argument(
        help="One or more statements, separated by semicolons.", metavar="STATEMENTS"
    ),
    *,
    locks: common.MaybeLocksOption = None,
    leases: lease_commands.MaybeLeasesOption = None,
    database: lock_commands.DatabaseOption = "default",
    setting: list[str] | None = Option(
        None, "--set", metavar="NAME=VALUE", help="As in Hive: hive.lock.numretries=3; repeatable."
    ),
    partitioned: lock_commands.PartitionedOption = None,
    wait: lock_commands.WaitOption = None,
    force: lock_commands.ForceOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Run statements about locks and leases.

    They are SHOW LOCKS, EXPLAIN LOCKS, LOCK, UNLOCK, SHOW LEASE and DROP FORCE LEASE. USE and SET
    apply to the statements after them.

    Example: txn sql "SHOW LOCKS sales.orders EXTENDED"
    """
    with require_extra("locks"):
        from txn.locks import statements as spoken  # noqa: PLC0415
    settings = dict(map(common.parse_setting, setting or ()))
    known = lock_commands.read_tables(partitioned or (), database)
    asked = spoken.parse_statements(statements, {**settings, DATABASE_SETTING: database}, known)
    if not asked:
        raise InvalidRequestError("no statement to run", given=statements)
    waiting = from_hive(settings, lock_commands.waiting_for(wait))

    def open_manager() -> LockManager:
        if not locks:
            raise InvalidRequestError("name a lock manager: --locks or TXN_LOCKS")
        return stack.enter_context(lock_commands.open_locks(locks))

    with ExitStack() as stack:
        manager = cache(open_manager)
        service = cache(lambda: stack.enter_context(lease_commands.open_service(leases)))
        # Everything is opened before the first statement runs.
        runs: list[Callable[[], None]] = []
        for each in asked:
            if isinstance(each, spoken.ShowLeases | spoken.DropLeases):
                runs.append(partial(_run_on_leases, each, service(), as_json))
            elif isinstance(each, spoken.ExplainLocks):
                runs.append(partial(lock_commands.show_needed, each.requests, as_json))
            else:
                runs.append(partial(_run_on_locks, each, manager(), waiting, force, as_json))
        for run in runs:
            run()


def _run_on_leases(asked: ShowLeases | DropLeases, service: LeaseService, as_json: bool) -> None:
    from txn.locks.statements import ShowLeases  # noqa: PLC0415

    objects = [] if asked.within is None else [asked.within]
    if isinstance(asked, ShowLeases):
        lease_commands.show_leases(service.list_lease(objects), service.now(), as_json)
    else:
        count = service.force_drop_lease(objects)
        lease_commands.show_dropped(", ".join(map(str, objects)), count, as_json)


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
            lock_commands.show_locks(statement.run(manager), extended, as_json)
        case TakeLock():
            with common.report_refusal(LockDenied):
                taken = statement.run(manager, waiting)
            lock_commands.show_requests(taken, as_json)
        case ReleaseLocks(path):
            with common.report_refusal(LockDenied):
                count = manager.release(path, force=force)
            lock_commands.show_released(str(path), count, as_json)
            if not count:
                raise typer.Exit(common.FOUND)
        case _:
            assert_never(statement)
