"""What `txn fsck` has looked at, here or on executors of Spark; and the option that says where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from typer.core import TyperCommand

from recovery.commands.common import RowBar
from recovery.findings import Ages, Finding, Result, Tally
from txn.host.extras import require_extra

SPARK, HERE = "--spark", "local[*]"

Found = tuple[Finding, Result | None]


@dataclass(slots=True)
class Look:
    """The findings as they come, each with what became of it; the tally counts meanwhile."""

    found: Iterator[Found] = field(default_factory=lambda: iter(()))
    tally: Tally = field(default_factory=Tally)


class Asked(NamedTuple):
    """What the command was asked for."""

    store: str
    transactions: str
    ages: Ages
    tables: list[bytes]
    repairs: bool


class MasterCommand(TyperCommand):
    """A command whose option --spark may stand without its value, a master of Spark's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say which master is meant where none is named."""
        return super().parse_args(ctx, name_master(args))


def name_master(args: list[str]) -> list[str]:
    """Return arguments in which `--spark` has its value; no other stands by itself."""
    named: list[str] = []
    for given, following in zip(args, [*args, "--"][1:], strict=True):
        named.append(given)
        if given == SPARK and following.startswith("-"):
            named.append(HERE)
    return named


@contextmanager
def look_on_executors(master: str, asked: Asked, bar: RowBar) -> Iterator[Look]:
    """Look, and repair, on executors; the findings are there when all of them have ended."""
    with require_extra("spark", option=SPARK):
        from recovery.spark import (  # noqa: PLC0415
            Inspection,
            Seen,
            open_session,
            plan_shares,
            repair_shares,
        )
    wanted = Inspection(asked.store, asked.transactions, asked.ages, asked.repairs)
    look = Look()
    with open_session(master) as spark:
        cores = spark.sparkContext.defaultParallelism
        shares = plan_shares(wanted, asked.tables, None, cores)
        bar.expect(len(shares))
        told = repair_shares(spark, wanted, shares, bar.reach)

        def find() -> Iterator[Found]:
            for each in told.toLocalIterator():
                if isinstance(each, Seen):
                    look.tally.rows += each.rows
                    look.tally.young.merge(each.young)
                else:
                    look.tally.add(*each)
                    yield each

        look.found = find()
        yield look
