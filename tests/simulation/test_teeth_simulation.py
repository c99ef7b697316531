"""The simulation has to bite too: with a safeguard taken out, it finds what breaks.

What is left out here needs more luck than a few thousand schedules have (the second look at the
holders, a retirer that is met, owners that are paused), or costs time and no data (beats, leases,
the order of locks), or needs assertions that the bank does not make (those of several rows).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import schedule as schedule_module
from tests.simulation import variants, variants_fenced
from tests.simulation.breaking import live_on, run
from tests.simulation.puppets import asks_for
from tests.simulation.schedule import run_many
from tests.simulation.shapes import BY_NAME
from tests.simulation.variants_parts import PARTS_RULES
from txn.protocol import commit as commit_module
from txn.protocol import six_phase as six_phase_module
from txn.protocol import transaction as transaction_module
from txn.protocol.statuses import Status
from txn.reading import snapshot as snapshot_module
from txn.testing.faulty import Fault

Patch = pytest.MonkeyPatch
MOST = 5_000


VARIANTS: dict[str, Callable[[Patch], None]] = {
    "a refused decision is believed": lambda patch: patch.setattr(
        commit_module, "decide", variants.believe
    ),
    "a lost decision is a failure": lambda patch: patch.setattr(
        commit_module, "decide", variants.decide_as_any_other_call
    ),
    "statuses are put plainly": lambda patch: variants.patch_steps(patch, variants.step_plainly),
    "locks come before the row": lambda patch: patch.setattr(
        six_phase_module, "prepare_six_phase", variants.lock_first
    ),
    "unlock by a plain write": lambda patch: variants.set_unlock(patch, variants.unlock_by_write),
    "unlock by a delete marker": lambda patch: variants.set_unlock(
        patch, variants.unlock_by_marker
    ),
    "unlock of whole rows": lambda patch: variants.set_unlock(patch, variants.unlock_whole_rows),
    "cells are read once": lambda patch: patch.setattr(snapshot_module, "_try", variants.look_once),
    "buffers of all decided holders are trusted": lambda patch: patch.setattr(
        snapshot_module, "value_of", variants.trust_all_decided
    ),
    "tags are not looked at": variants.without_tags,
    "values whose table is gone are left out": variants.leave_values_out,
    "what fails after the decision is told": lambda patch: patch.setattr(
        commit_module, "finish_or_leave", variants.tell_what_fails
    ),
    "no marker for a token": lambda patch: patch.setattr(
        transaction_module, "add_marker", variants.marker_not_asserted
    ),
}


FENCED: dict[str, Callable[[Patch], None]] = {
    "locks do not count": variants_fenced.count_nothing,
    "commits lie above the clock alone": lambda patch: variants_fenced.choose_the_time(
        patch, lambda context, t: context.clock.wall_ms()
    ),
    "commits lie above values alone": lambda patch: variants_fenced.choose_the_time(
        patch, variants_fenced.time_of_values
    ),
    "statuses are put at the server's time": variants_fenced.put_at_the_servers_time,
    "others finish without looking": variants_fenced.finish_without_looking,
    "locks are freed before values are put": variants_fenced.unlock_before_values,
    "complete before all is put": variants_fenced.complete_first,
    "locks come before the row": variants_fenced.lock_before_the_row,
    "the decision does not compare": variants_fenced.decide_plainly,
    "a refused decision is believed": VARIANTS["a refused decision is believed"],
    "a lost decision is a failure": VARIANTS["a lost decision is a failure"],
    "refused locks are no matter": variants_fenced.believe_in_every_lock,
    "locks of the undecided are freed": variants_fenced.free_the_undecided,
    "locks are freed as they are by then": variants_fenced.free_what_is_there,
    "what was read again is not evaluated": variants_fenced.judge_never_again,
    "locks are looked at once": variants_fenced.look_at_locks_once,
    "holders that have decided are not looked at": lambda patch: patch.setattr(
        snapshot_module, "_was_undecided", lambda *args: True
    ),
    "no marker for a token": VARIANTS["no marker for a token"],
}


PARTS = (
    "a part aborts alone",
    "parts are not finished first",
    "a part is undecided while it says so",
)


@pytest.mark.parametrize("name", VARIANTS)
def test_schedules_find_what_a_missing_safeguard_breaks(name: str, monkeypatch: Patch) -> None:
    """Random schedules that find nothing prove something only if they find this."""
    VARIANTS[name](monkeypatch)
    with pytest.raises(AssertionError, match="--schedules 1 --seed"):
        run_many(range(MOST))


@pytest.mark.parametrize("name", PARTS)
def test_schedules_find_what_a_missing_rule_of_parts_breaks(name: str, monkeypatch: Patch) -> None:
    """The same of transactions in parts, which some schedules have."""
    PARTS_RULES[name](monkeypatch)
    with pytest.raises(AssertionError, match="--schedules 1 --seed"):
        run_many(range(MOST))


@pytest.mark.parametrize("name", FENCED)
def test_schedules_find_what_a_missing_fenced_rule_breaks(name: str, monkeypatch: Patch) -> None:
    """The same of the second protocol. Without parts, which leave fewer owners to be overtaken."""
    monkeypatch.setattr(schedule_module, "IN_PARTS", (0.0,))
    FENCED[name](monkeypatch)
    with pytest.raises(AssertionError, match="--protocol fenced"):
        run_many(range(MOST), protocol="fenced")


def test_the_exploration_finds_a_client_that_lies(monkeypatch: Patch) -> None:
    """The same of the exhaustive part."""
    monkeypatch.setattr(commit_module, "decide", variants.believe)
    shape = BY_NAME["two rows, asserted"]
    decision = next(call for call in run(shape).calls if asks_for(Status.ASSERTED)(call))
    with pytest.raises(AssertionError, match="nothing happened"):
        live_on(run(shape, {decision.number: Fault(twice=True)}))
