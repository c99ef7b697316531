"""Power failures in the random schedules: what the protocol defers may be lost, and if it deferred
more, the schedules would find what breaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.simulation.deferring import (
    DeferringStore,
    Kind,
    is_any,
    is_lock,
    is_sent_deferred,
    is_step_to,
    is_value,
)
from tests.simulation.schedule import Schedule
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status

EACH = 300
MOST = 1_500
FORBIDDEN: dict[str, Kind] = {
    "locks": is_lock,
    "the decision": is_step_to(Status.ASSERTED),
    "values": is_value,
    "the row of a part": is_step_to(Status.PART),
}
SIX_PHASE = {**FORBIDDEN, "3-PUT": is_step_to(Status.PUT)}
BROKEN = [*((name, "six-phase") for name in SIX_PHASE), *((name, "fenced") for name in FORBIDDEN)]


def run(
    seeds: Iterable[int], protocol: ProtocolName, is_deferred: Kind, trace: list[str] | None = None
) -> Iterator[Schedule]:
    for seed in seeds:
        schedule = Schedule(seed, None if trace is None else trace.append, protocol)
        if schedule.weather.loses_logs:
            schedule.memory = DeferringStore(schedule.regions, is_deferred)
            schedule.run()
            yield schedule


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_may_be_deferred_may_be_lost(protocol: ProtocolName) -> None:
    trace: list[str] = []
    ran = len(list(run(range(EACH), protocol, is_sent_deferred, trace)))
    assert EACH // 4 < ran < EACH // 2
    assert sum("loses" in line for line in trace) > 10, "nearly nothing was lost"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_lost_by_a_client_that_defers_nothing(protocol: ProtocolName) -> None:
    trace: list[str] = []
    assert list(run(range(30), protocol, lambda check: False, trace))
    assert not any("loses" in line for line in trace)


@pytest.mark.parametrize(("name", "protocol"), BROKEN)
def test_schedules_find_what_must_not_be_deferred(name: str, protocol: ProtocolName) -> None:
    forbidden = SIX_PHASE[name]
    with pytest.raises(AssertionError):
        list(run(range(MOST), protocol, is_any(is_sent_deferred, forbidden)))
