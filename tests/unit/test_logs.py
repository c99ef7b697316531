"""The log: who is told what, and what nobody is told."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest

from tests.unit.worlds import World, X, Y, after_status, stopped_at
from txn import AssertionFailedError, Exact, Mutation
from txn.events import Event, Helped
from txn.host.owner import name_owner
from txn.protocol.statuses import Status
from txn.testing.faulty import Fault, Reply

ROOT = Path(__file__).parents[2]
SECRET = "nobody's business"


def test_no_line_has_a_value_of_a_cell(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    holder = stopped_at(world, Status.ASSERTED, value=SECRET.encode())
    world.engine.commit([Mutation(X, SECRET + "2")])
    after_status(world, Status.WRITTEN, Fault(frozenset(), Reply.NOT_APPLIED))
    world.engine.commit([Mutation(X, SECRET + "3")])
    with pytest.raises(AssertionFailedError, match=SECRET):
        world.engine.commit([Mutation(X, SECRET)], [Exact(X, SECRET + "4")])
    after_status(world, Status.PUT, Fault(frozenset(), Reply.NOT_APPLIED))
    fail = world.faults.plan

    def plan(call: object) -> Fault:
        fault = fail(call)  # type: ignore[arg-type]
        if fault.reply is Reply.NOT_APPLIED:  # and it goes on failing
            world.faults.plan = lambda call: Fault(frozenset(), Reply.NOT_APPLIED)
        return fault

    world.faults.plan = plan
    assert not world.engine.commit([Mutation(Y, SECRET)]).complete
    world.faults.plan = lambda call: Fault()

    def stumble(event: Event) -> None:
        if isinstance(event, Helped):
            raise ZeroDivisionError

    world.on_event = stumble  # type: ignore[method-assign]
    client = world.client(seed=9)
    client.commit([Mutation(Y, SECRET + "5")])
    levels = {record.levelno for record in caplog.records}
    assert levels == {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}
    assert {record.name for record in caplog.records} == {"txn"}
    assert f"transaction={holder.decode()} owner={name_owner()}" in caplog.text
    assert SECRET not in caplog.text


def test_each_logger_is_in_the_table() -> None:
    table = (ROOT / "docs" / "observing.md").read_text().split("## The log\n")[1]
    named = set(re.findall(r"`(txn[\w.]*)`", table))
    for path in (*(ROOT / "txn").rglob("*.py"), *(ROOT / "recovery").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for given in re.findall(r"getLogger\(([^)]*)\)", path.read_text()):
            assert (module if given == "__name__" else ast.literal_eval(given)) in named
