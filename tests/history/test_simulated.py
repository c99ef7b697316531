"""Histories of simulated clients: nothing against them, unless a safeguard is taken out.
TXN_HISTORIES says how many schedules; a failure names its seed."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain, islice

import pytest

from tests.history.anomalies import Kind
from tests.history.simulated import found, found_among_blocks
from tests.history.workload import COUNTERS, LISTS, MODELS, REGISTERS, raw
from tests.simulation import variants
from txn import OptimisticTransaction
from txn.protocol import commit as commit_module
from txn.protocol import prepare as prepare_module
from txn.protocol import six_phase as six_phase_module
from txn.reading import scans as scans_module
from txn.reading import snapshot as snapshot_module

HISTORIES = int(os.environ.get("TXN_HISTORIES", "1500"))
GROUPS = 6
MOST = 500
FENCED = int(os.environ.get("TXN_HISTORIES", "450"))
BLOCKS = int(os.environ.get("TXN_HISTORIES", "750"))
MANY = 1000
# What only one in two thousand shows, looked for first where it was last found.
RARE = (*range(2350, 2500), *range(2350))
Patch = pytest.MonkeyPatch

every_model = pytest.mark.parametrize("model", MODELS)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
@every_model
def test_transactions_and_reads_are_strictly_serialisable(model: str, group: int) -> None:
    each = -(-HISTORIES // len(MODELS) // GROUPS)
    wrong = next(found(range(group * each, (group + 1) * each), MODELS[model]), None)
    assert wrong is None, f"seed {wrong[0]}: {wrong[1]}"


@pytest.mark.slow
def test_raw_reads_are_fractured_and_late() -> None:
    """The protocol says so: a plain client of HBase sees a transaction cell by cell, and, where
    its commit was acknowledged when it was decided, later than its acknowledgement. It never sees
    what is not decided, and two transactions never write in opposite orders."""
    kinds = {anomaly.kind for _, anomaly in found(range(MOST), LISTS, raw)}
    assert kinds >= {Kind.G_SINGLE, Kind.REAL_TIME}
    assert kinds <= {Kind.G_SINGLE, Kind.G2_ITEM, Kind.G2, Kind.REAL_TIME}


def without_assertions(patch: Patch) -> None:
    patch.setattr(six_phase_module, "find_failed", lambda t: None)


VARIANTS: dict[str, tuple[Kind, Callable[[Patch], None]]] = {
    "assertions are not evaluated": (Kind.LOST_UPDATE, without_assertions),
    "a refused decision is believed": (
        Kind.G1A,
        lambda patch: patch.setattr(commit_module, "decide", variants.believe),
    ),
    "a lost decision is a failure": (
        Kind.G1A,
        lambda patch: patch.setattr(commit_module, "decide", variants.decide_as_any_other_call),
    ),
    "unlock by a plain write": (
        Kind.LOST_UPDATE,
        lambda patch: variants.set_unlock(patch, variants.unlock_by_write),
    ),
    "unlock by a delete marker": (
        Kind.LOST_UPDATE,
        lambda patch: variants.set_unlock(patch, variants.unlock_by_marker),
    ),
    "cells are read once": (
        Kind.G_SINGLE,
        lambda patch: patch.setattr(snapshot_module, "_try", variants.look_once),
    ),
    "reads are taken for instants": (
        Kind.G_SINGLE,
        lambda patch: patch.setattr(snapshot_module, "_try", snapshot_module._try_at_once),
    ),
    "unlock of whole rows": (
        Kind.INCOMPATIBLE_ORDER,
        lambda patch: variants.set_unlock(patch, variants.unlock_whole_rows),
    ),
    "rows are scanned past their holders": (
        Kind.G_SINGLE,
        lambda patch: patch.setattr(scans_module, "find_undecided", lambda _, holders: holders),
    ),
    "ranges are not looked at again": (
        Kind.G2,
        lambda patch: patch.setattr(prepare_module, "find_phantom", lambda *_: None),
    ),
    "keys are not validated": (Kind.G2_ITEM, variants.believe_what_was_read),
}


AMONG_BLOCKS = (
    "unlock of whole rows",
    "rows are scanned past their holders",
    "ranges are not looked at again",
)
"""What histories of blocks show soonest, so they are searched first."""


@pytest.mark.parametrize("name", VARIANTS)
def test_a_missing_safeguard_shows_in_a_history(name: str, monkeypatch: Patch) -> None:
    kind, take_out = VARIANTS[name]
    take_out(monkeypatch)
    histories = [found(range(MOST)), found_among_blocks(RARE, LISTS)]
    if name in AMONG_BLOCKS:
        histories.reverse()
    assert any(anomaly.kind is kind for _, anomaly in chain(*histories))


def test_readers_that_do_not_wait_show_in_a_history(monkeypatch: Patch) -> None:
    """Somebody changes what a block has read between its validation and its decision, and somebody
    who only reads comes by: it takes three to see it, so here are many who read."""
    for module in (snapshot_module, scans_module):
        monkeypatch.setattr(module, "hides_values", lambda rules, holder, cells: False)
    monkeypatch.setattr(snapshot_module, "_was_undecided", variants.was_undecided)
    kinds = {anomaly.kind for _, anomaly in islice(found_among_blocks(range(MANY), COUNTERS), 1)}
    assert kinds and kinds <= {Kind.G2, Kind.G2_ITEM}


@pytest.mark.slow
@every_model
def test_fenced_transactions_are_strictly_serialisable(model: str) -> None:
    seeds = range(-(-FENCED // len(MODELS)))
    histories = chain(
        found(seeds, MODELS[model], protocol="fenced"),
        found_among_blocks(seeds, MODELS[model], protocol="fenced"),
    )
    wrong = next(histories, None)
    assert wrong is None, f"seed {wrong[0]}: {wrong[1]}"


@pytest.mark.slow
@every_model
def test_blocks_that_scan_are_strictly_serialisable(model: str) -> None:
    seeds = range(-(-BLOCKS // len(MODELS)))
    wrong = next(found_among_blocks(seeds, MODELS[model]), None)
    assert wrong is None, f"seed {wrong[0]}: {wrong[1]}"


def test_what_a_scan_did_not_find_is_asserted_when_it_is_written(monkeypatch: Patch) -> None:
    """Who puts a key because a scan did not find it must not replace what came meanwhile."""
    monkeypatch.setattr(OptimisticTransaction, "_note_absence", lambda self, key: None)
    shown = {Kind.G_SINGLE, Kind.G2}
    assert any(anomaly.kind in shown for _, anomaly in found(range(MOST), REGISTERS))
