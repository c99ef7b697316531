"""Histories of simulated clients: nothing against them, unless a safeguard is taken out."""

from __future__ import annotations

import os
from itertools import islice

import pytest

from tests.history.anomalies import Kind
from tests.history.simulated import Blocks, HistorySchedule, found
from tests.history.workload import COUNTERS, LISTS, MODELS, REGISTERS, raw
from tests.simulation import schedule, variants
from tests.simulation.bank import Bank
from tests.simulation.rules import Patch, TakeOut, set_name
from tests.simulation.variants import SIX_PHASE_RULES
from txn import OptimisticTransaction
from txn.protocol.statuses import ProtocolName
from txn.reading import scans, snapshot

HISTORIES = int(os.environ.get("TXN_HISTORIES", "1500"))
GROUPS = 3
MOST = 500
FENCED = int(os.environ.get("TXN_HISTORIES", "450"))
BLOCKS = int(os.environ.get("TXN_HISTORIES", "750"))
MANY = 1000


SCHEDULES: list[tuple[type[HistorySchedule], ProtocolName, int]] = [
    (HistorySchedule, "six-phase", HISTORIES),
    (Blocks, "six-phase", BLOCKS),
    (HistorySchedule, "fenced", FENCED),
    (Blocks, "fenced", FENCED),
]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("kind", "protocol", "many"), SCHEDULES)
def test_histories_are_strictly_serialisable(
    kind: type[HistorySchedule], protocol: ProtocolName, many: int, model: str, group: int
) -> None:
    each = -(-many // len(MODELS) // GROUPS)
    seeds = range(group * each, (group + 1) * each)
    wrong = next(found(seeds, MODELS[model], kind, protocol=protocol), None)
    assert wrong is None, f"seed {wrong[0]}: {wrong[1]}"


@pytest.mark.slow
def test_raw_reads_are_fractured_and_late() -> None:
    """Though a plain client never sees what is not decided, nor writes in opposite orders."""
    kinds = {anomaly.kind for _, anomaly in found(range(MOST), LISTS, look=raw)}
    assert kinds >= {Kind.G_SINGLE, Kind.REAL_TIME}
    assert kinds <= {Kind.G_SINGLE, Kind.G2_ITEM, Kind.G2, Kind.REAL_TIME}


def share_a_row(patch: Patch) -> None:
    """Unlock whole rows where all keys but one are in one row."""
    SIX_PHASE_RULES["unlock of whole rows"](patch)
    patch.setattr(schedule, "Bank", lambda size, rows, *more: Bank(3, 1, *more))


MISSING: dict[str, tuple[Kind, TakeOut]] = {
    "a refused decision is believed": (
        Kind.G1A,
        SIX_PHASE_RULES["a refused decision is believed"],
    ),
    "a lost decision is a failure": (Kind.G1A, SIX_PHASE_RULES["a lost decision is a failure"]),
    "unlock by a plain write": (Kind.LOST_UPDATE, SIX_PHASE_RULES["unlock by a plain write"]),
    "unlock by a delete marker": (Kind.LOST_UPDATE, SIX_PHASE_RULES["unlock by a delete marker"]),
    "cells are read once": (Kind.G_SINGLE, SIX_PHASE_RULES["cells are read once"]),
    "assertions are not evaluated": (
        Kind.LOST_UPDATE,
        set_name("protocol.six_phase.find_failed", lambda t: None),
    ),
    "reads are taken for instants": (
        Kind.G_SINGLE,
        set_name("reading.snapshot._try", snapshot._try_at_once),
    ),
    "keys are not validated": (Kind.G2_ITEM, variants.believe_what_was_read),
}
MISSING_AMONG_BLOCKS: dict[str, tuple[Kind, TakeOut]] = {
    "unlock of whole rows": (Kind.INCOMPATIBLE_ORDER, share_a_row),
    "rows are scanned past their holders": (
        Kind.G_SINGLE,
        set_name("reading.scans.find_undecided", lambda _, holders: holders),
    ),
    "ranges are not looked at again": (
        Kind.G2,
        set_name("protocol.prepare.find_phantom", lambda *_: None),
    ),
}


@pytest.mark.parametrize("name", [*MISSING, *MISSING_AMONG_BLOCKS])
def test_a_missing_safeguard_shows_in_a_history(name: str, monkeypatch: Patch) -> None:
    kind, take_out = {**MISSING, **MISSING_AMONG_BLOCKS}[name]
    take_out(monkeypatch)
    schedules = HistorySchedule if name in MISSING else Blocks
    assert any(anomaly.kind is kind for _, anomaly in found(range(MOST), LISTS, schedules))


def test_readers_that_do_not_wait_show_in_a_history(monkeypatch: Patch) -> None:
    """It takes three to see it, so here are many who read."""
    for module in (snapshot, scans):
        monkeypatch.setattr(module, "hides_values", lambda rules, holder, cells: False)
    monkeypatch.setattr(snapshot, "_was_undecided", variants.was_undecided)
    kinds = {anomaly.kind for _, anomaly in islice(found(range(MANY), COUNTERS, Blocks), 1)}
    assert kinds and kinds <= {Kind.G2, Kind.G2_ITEM}


def test_what_a_scan_did_not_find_is_asserted_when_it_is_written(monkeypatch: Patch) -> None:
    """Who puts a key because a scan did not find it must not replace what came meanwhile."""
    monkeypatch.setattr(OptimisticTransaction, "_note_absence", lambda self, key: None)
    shown = {Kind.G_SINGLE, Kind.G2}
    assert any(anomaly.kind in shown for _, anomaly in found(range(MOST), REGISTERS))
