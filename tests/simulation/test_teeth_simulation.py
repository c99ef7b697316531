"""The simulation has to bite too."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product

import pytest

from tests.simulation import schedule as schedule_module
from tests.simulation import variants
from tests.simulation.breaking import live_on, run
from tests.simulation.calls import asks_for
from tests.simulation.regions import (
    DeferringStore,
    Kind,
    is_any,
    is_lock,
    is_sent_deferred,
    is_step_to,
    is_value,
)
from tests.simulation.rules import Patch, TakeOut, without
from tests.simulation.schedule import Schedule, run_many
from tests.simulation.shapes import BY_NAME
from tests.simulation.variants import FENCED_RULES, PARTS_RULES, SIX_PHASE_RULES
from txn.protocol.statuses import PROTOCOLS, ProtocolName, Status
from txn.testing.faulty import Fault

MOST = 5_000


VARIANTS: dict[str, TakeOut] = {
    **SIX_PHASE_RULES,
    **{
        name: PARTS_RULES[name]
        for name in ("a part aborts alone", "parts are not finished first", "parts are not counted")
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_schedules_find_what_a_missing_safeguard_breaks(name: str, monkeypatch: Patch) -> None:
    VARIANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="--schedules 1 --seed"):
        run_many(range(MOST))


@pytest.mark.parametrize("name", FENCED_RULES)
def test_schedules_find_what_a_missing_fenced_rule_breaks(name: str, monkeypatch: Patch) -> None:
    """Without parts, which leave fewer owners to be overtaken."""
    monkeypatch.setattr(schedule_module, "IN_PARTS", (0.0,))
    FENCED_RULES[name](monkeypatch)
    with pytest.raises(AssertionError, match="--protocol fenced"):
        run_many(range(MOST), protocol="fenced")


FORBIDDEN: dict[str, Kind] = {
    "locks": is_lock,
    "the decision": is_step_to(Status.ASSERTED),
    "values": is_value,
    "the row of a part": is_step_to(Status.PART),
    "3-PUT": is_step_to(Status.PUT),
}
DEFERRED = [*product(FORBIDDEN, PROTOCOLS)][:-1]  # the fenced protocol has no 3-PUT


@pytest.mark.parametrize(("name", "protocol"), DEFERRED)
def test_schedules_find_what_must_not_be_deferred(name: str, protocol: ProtocolName) -> None:
    """In those that lose logs, with this deferred beside what the protocol defers."""
    with pytest.raises(AssertionError):
        for seed in range(1_500):
            schedule = Schedule(seed, protocol=protocol)
            if schedule.weather.loses_logs:
                kind = is_any(is_sent_deferred, FORBIDDEN[name])
                schedule.memory = DeferringStore(schedule.regions, kind)
                schedule.run()


@without("protocol.commit.decide", variants.believe)
def test_the_exploration_finds_a_client_that_lies(rule: bool) -> None:
    shape = BY_NAME["two rows, asserted"]
    decision = next(call for call in run(shape).calls if asks_for(Status.ASSERTED)(call))
    with nullcontext() if rule else pytest.raises(AssertionError, match="nothing happened"):
        live_on(run(shape, {decision.number: Fault(twice=True)}))
