"""A client that stops, or is told too little, at any call of the store, on a real HBase."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.hbase import HBase
from tests.integration.scoped import Worlds, worlds
from tests.simulation.breaking import faults, live_on, run
from tests.simulation.shapes import BY_NAME
from tests.simulation.world import World
from txn.testing.faulty import Reply


@pytest.fixture(
    scope="module",
    params=[
        ("native", "six-phase"),
        ("native", "fenced"),
        ("thrift1", "six-phase"),
        pytest.param(("thrift2", "six-phase"), marks=pytest.mark.long),
        pytest.param(("thrift2", "fenced"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def of_both(request: pytest.FixtureRequest, hbase: HBase) -> Iterator[Worlds]:
    with worlds(hbase, *request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def on_hbase(of_both: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "opened", of_both.opened)


@pytest.mark.parametrize("reply", [Reply.CRASH, Reply.MAYBE_APPLIED], ids=lambda reply: reply.name)
def test_whatever_call_fails_all_or_nothing_happens(reply: Reply) -> None:
    """The simulation shows it for a model of HBase; this is what the model is a model of."""
    shape = BY_NAME["two rows, assertion on a third key"]
    for call in run(shape).calls:
        for fault in faults(call):
            if fault.reply is reply:
                live_on(run(shape, {call.number: fault}))


def test_a_gateway_that_repeats_requests_changes_nothing() -> None:
    shape = BY_NAME["once"]
    for call in run(shape).calls:
        for fault in faults(call):
            if fault.twice:
                live_on(run(shape, {call.number: fault}))
