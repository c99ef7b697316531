"""The simulation has to bite too."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from tests.simulation import schedule as schedule_module
from tests.simulation import variants
from tests.simulation.bank import Bank
from tests.simulation.breaking import CHANGING, live_on, run
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
from txn.testing.faulty import Call, Fault, Reply

MOST = 5_000


def set_weather(patch: Patch, accounts: int, **changes: Any) -> None:
    """Let all schedules have so many accounts, and what they change in their weather."""
    draw = schedule_module.weather
    patch.setattr(schedule_module, "weather", lambda random: replace(draw(random), **changes))
    patch.setattr(
        schedule_module, "Bank", lambda size, rows, *rest: Bank(accounts, accounts, *rest)
    )


def free_behind_slow_rows(patch: Patch) -> None:
    """Free the locks of absent rows, where rows often come much later than their locks."""
    variants.free_without_poison(patch)
    set_weather(patch, 4, clients=3, readers=0, fscks=0, fault_rate=0.0, tick_ms=5, lock_ttl_ms=30)
    patch.setattr(schedule_module, "SLOW_RATES", (0.4,))
    patch.setattr(schedule_module, "SLOW_MS", (100, 300))


def unlock_beside_lost_steps(patch: Patch) -> None:
    """Let the unlocks travel with 3-PUT, where a part of a faulty request is lost for good."""
    variants.unlock_with_put(patch)
    rates = {"fault_rate": 0.2, "crash_rate": 0.3}
    set_weather(patch, 3, readers=0, fscks=0, tick_ms=5, lock_ttl_ms=300, collects=True, **rates)
    patch.setattr(schedule_module, "SLOW_RATES", (0.0,))
    patch.setattr(schedule_module, "LATEST_MS", 100 - schedule_module.RETENTION_MS)
    patch.setattr(schedule_module, "draw_fault", lose_a_part)


def read_beside_parts(patch: Patch) -> None:
    """Let readers not ask for the transaction of a part, where all commits are in parts."""
    PARTS_RULES["a part is undecided while it says so"](patch)
    rates = {"fault_rate": 0.1, "crash_rate": 0.4}
    set_weather(patch, 2, readers=3, fscks=0, one_cell=False, collects=False, **rates)
    patch.setattr(schedule_module, "IN_PARTS", (1.0,))


def lose_a_part(random: Random, call: Call, crash_rate: float) -> Fault:
    reply = Reply.CRASH if random.random() < crash_rate else Reply.MAYBE_APPLIED
    if call.method not in CHANGING:
        return Fault(reply=reply)
    applied = frozenset(i for i in range(len(call.items)) if random.random() < 0.7)
    return Fault(applied=applied, reply=reply)


VARIANTS: dict[str, TakeOut] = {
    **SIX_PHASE_RULES,
    "locks of absent rows are freed": free_behind_slow_rows,
    "unlocks travel with 3-PUT": unlock_beside_lost_steps,
    "a part aborts alone": PARTS_RULES["a part aborts alone"],
    "parts are not finished first": PARTS_RULES["parts are not finished first"],
    "a part is undecided while it says so": read_beside_parts,
    "parts are not counted": PARTS_RULES["parts are not counted"],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_schedules_find_what_a_missing_safeguard_breaks(name: str, monkeypatch: Patch) -> None:
    """Random schedules that find nothing prove something only if they find this."""
    VARIANTS[name](monkeypatch)
    start = 1_720 if name == "locks of absent rows are freed" else 0  # where it was found last
    with pytest.raises(AssertionError, match="--schedules 1 --seed"):
        run_many((*range(start, MOST), *range(start)))


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
    """The same of the exhaustive part."""
    shape = BY_NAME["two rows, asserted"]
    decision = next(call for call in run(shape).calls if asks_for(Status.ASSERTED)(call))
    with nullcontext() if rule else pytest.raises(AssertionError, match="nothing happened"):
        live_on(run(shape, {decision.number: Fault(twice=True)}))
