"""`txn sql`: SHOW LOCKS, EXPLAIN LOCKS, LOCK TABLE and UNLOCK TABLE, as Hive has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from recovery.commands.common import FOUND, JsonOption
from recovery.commands.locks import (
    ForceOption,
    ManagerOption,
    PartitionedOption,
    WaitOption,
    managed,
    needing_parser,
    refusals,
    show_locks,
    show_released,
    show_requests,
    waiting_for,
    written_down,
)
from txn.errors import InvalidRequestError, describe
from txn.locks.hive_model import DATABASE_SETTING
from txn.locks.manager import from_hive

if TYPE_CHECKING:
    from txn.locks.statements import Result


def sql(
    statements: Annotated[str, typer.Argument(help="Statements, with semicolons between them.")],
    *,
    manager: ManagerOption,
    database: Annotated[str, typer.Option(help="Of names that have none.")] = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Such as hive.lock.numretries=3."),
    ] = None,
    partitioned: PartitionedOption = None,
    wait: WaitOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run SHOW LOCKS, EXPLAIN LOCKS, LOCK TABLE and UNLOCK TABLE."""
    with needing_parser():
        from txn.locks import statements as spoken  # noqa: PLC0415
    settings = dict(map(_setting, setting or ()))
    known = written_down(partitioned or (), database)
    asked = spoken.parse(statements, {**settings, DATABASE_SETTING: database}, known)
    waiting = from_hive(settings, waiting_for(wait))
    with managed(manager) as locks:
        for statement in asked:
            with refusals():
                result = spoken.run(statement, locks, waiting=waiting, force=force)
            _show(result, as_json)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(describe("write NAME=VALUE", given=text))
    return name.strip(), value.strip()


def _show(result: Result, as_json: bool) -> None:
    from txn.locks.statements import Explained, GivenBack, Shown, Taken  # noqa: PLC0415

    match result:
        case Shown(locks, extended):
            show_locks(locks, extended, as_json)
        case Explained(requests) | Taken(requests):
            show_requests(requests, as_json)
        case GivenBack(path, count):
            show_released(str(path), count, as_json)
            if not count:
                raise typer.Exit(FOUND)
        case _:
            assert_never(result)
