"""Histories with reads in many tasks, as of one instant, beside clients that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from tests.history.anomalies import Anomaly
from tests.history.simulated import Snapshots
from tests.history.workload import MODELS
from txn.model import Row
from txn.protocol.statuses import PROTOCOLS, ProtocolName
from txn.reading import instants
from txn.reading.instants import LaterChanges

SCHEDULES = 25
MOST = 600
RARE = (66, 95, 362, 674, 3408)
"""Where a listing that is taken for one instant was last found to show a mixture."""
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.usefixtures("rows_for_all")


def find_anomalies(seeds: Iterable[int], protocol: ProtocolName) -> Iterator[tuple[int, Anomaly]]:
    models = list(MODELS.values())
    for seed in seeds:
        model = models[seed % len(models)]
        for anomaly in Snapshots(seed, model, protocol=protocol).anomalies():
            yield seed, anomaly


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_snapshots_are_strictly_serialisable(protocol: ProtocolName) -> None:
    found = 0
    for seed, model in zip(range(SCHEDULES), cycle(MODELS.values()), strict=False):
        schedule = Snapshots(seed, model, protocol=protocol)
        assert not schedule.anomalies(), f"seed {seed}"
        found += schedule.found
    assert found > SCHEDULES, "too few reads came to their end"


def believe_times(patch: Patch) -> None:
    patch.setattr(instants, "_is_certain", lambda *_: True)


def forget_what_was_seen(patch: Patch) -> None:
    shorten = instants._shorten
    patch.setattr(instants, "_sum_covered", lambda *_: 0)
    patch.setattr(instants, "_shorten", lambda *given: replace(shorten(*given), before=frozenset()))


def look_before_reading(patch: Patch) -> None:
    begin, look = LaterChanges.__init__, LaterChanges._read_changes

    def begin_with_look(self: LaterChanges, *given: Any) -> None:
        begin(self, *given)
        look(self)

    patch.setattr(LaterChanges, "__init__", begin_with_look)
    patch.setattr(LaterChanges, "_read_changes", lambda self: None)


def restore_older_cells(patch: Patch) -> None:
    patch.setattr(instants, "_precedes", lambda *_: False)


def list_once(patch: Patch) -> None:
    take_back, look = LaterChanges.take_back, LaterChanges._read_changes

    def take_back_by_one(self: LaterChanges, *given: Any) -> Iterator[Row]:
        looks: list[object] = []
        self._read_changes = lambda: looks or looks.append(look(self))  # type: ignore
        yield from take_back(self, *given)

    patch.setattr(LaterChanges, "take_back", take_back_by_one)


@pytest.mark.parametrize(
    "take_out",
    [believe_times, forget_what_was_seen, look_before_reading, restore_older_cells, list_once],
)
def test_without_a_rule_a_snapshot_never_was(
    take_out: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    take_out(monkeypatch)
    assert next(find_anomalies((*RARE, *range(MOST)), "fenced"), None) is not None
