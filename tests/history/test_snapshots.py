"""Histories with reads in many tasks, as of one instant, beside clients that fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.history.simulated import Snapshots, found
from tests.history.workload import MODELS
from tests.simulation.rules import Patch, TakeOut, set_name
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.reading import instants
from txn.reading.instants import LaterChanges

SCHEDULES = 25
MOST = 600

pytestmark = pytest.mark.usefixtures("rows_for_all")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_snapshots_are_strictly_serialisable(protocol: ProtocolName) -> None:
    reads = 0
    for seed in range(SCHEDULES):
        schedule = Snapshots(seed, list(MODELS.values())[seed % len(MODELS)], protocol=protocol)
        assert not schedule.anomalies(), f"seed {seed}"
        reads += schedule.found
    assert reads > SCHEDULES, "too few reads came to their end"


def forget_what_was_seen(patch: Patch) -> None:
    """Take what has a time after the mark for decided after it, seen or not."""
    shorten = instants._shorten
    patch.setattr(instants, "_sum_covered", lambda *_: 0)
    patch.setattr(instants, "_shorten", lambda *given: shorten(*given)._replace(before=frozenset()))


def look_before_reading(patch: Patch) -> None:
    begin, look = LaterChanges.__init__, LaterChanges._read_changes

    def begin_with_look(self: LaterChanges, *given: Any) -> None:
        begin(self, *given)
        look(self)

    patch.setattr(LaterChanges, "__init__", begin_with_look)
    patch.setattr(LaterChanges, "_read_changes", lambda self: None)


BROKEN: dict[str, TakeOut] = {
    "times are believed": set_name("reading.instants._is_certain", lambda *_: True),
    "what was seen is forgotten": forget_what_was_seen,
    "later changes are looked for before reading": look_before_reading,
}
"""What a listing of several steps must not do is in test_teeth_reads.py."""


@pytest.mark.parametrize("name", BROKEN)
def test_without_a_rule_a_snapshot_never_was(name: str, monkeypatch: Patch) -> None:
    BROKEN[name](monkeypatch)
    models = list(MODELS.values())
    histories = (
        found([seed], models[seed % len(models)], Snapshots, protocol="fenced")
        for seed in range(MOST)
    )
    assert any(next(each, None) for each in histories)
