"""The protocol's own tests on a real HBase: natively, and in `make long` by each gateway too."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.integration.hbase import HBase
from tests.integration.scoped import Worlds, worlds
from tests.unit import (
    test_commit,
    test_engine,
    test_fsck,
    test_fsck_safety,
    test_fsck_tables,
    test_reads,
)
from tests.unit.worlds import World

SUITES = (
    test_commit,
    test_engine,
    test_fsck,
    test_fsck_safety,
    test_fsck_tables,
    test_reads,
)


# These need a clock that stands still, a store that can be looked into or told to compact, a store
# or (as Thrift 1 cannot make one) a table of their own, reads of one instant, or the phases' times,
# which both gateways do not give; or what Thrift 1 lacks: the fenced protocol, times of statuses.
ONLY_IN_MEMORY = {
    "test_a_family_with_a_ttl_is_refused",
    "test_a_repair_that_changes_nothing_says_so",
    "test_a_value_that_a_delete_had_hidden_is_reported",
    "test_a_write_past_the_protocol_is_reported_and_kept",
    "test_debris_is_deleted_after_the_retention",
    "test_a_compaction_leaves_nothing_of_a_retired_key",
    "test_a_key_that_is_used_again_is_not_retired",
    "test_a_read_whose_looks_lie_far_apart_begins_again",
    "test_a_living_job_may_be_silent_for_its_lock_ttl",
    "test_a_read_under_locks_leaves_no_outcome_open",
    "test_every_phase_is_in_the_row_with_its_time",
    "test_finished_rows_expire_by_the_time_of_their_last_status",
    "test_what_has_ended_is_not_ended_again",
    "test_what_makes_no_sense_is_refused_before_anything_is_written_or_sent",
    "test_within_the_grace_it_is_nobodys_business",
}


GATEWAYS = [pytest.param(name, marks=pytest.mark.long) for name in ("thrift1", "thrift2")]


@pytest.fixture(scope="module", params=["native", *GATEWAYS])
def many(request: pytest.FixtureRequest, hbase: HBase) -> Iterator[Worlds]:
    with worlds(hbase, request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def on_hbase(many: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a world is set by hours: that it then differs from the servers' is let pass."""
    monkeypatch.setattr(World, "opened", many.opened)
    monkeypatch.setattr("txn.protocol.clocks.measure_skew", lambda context: 0)


def renamed(suite: ModuleType) -> dict[str, object]:
    name = suite.__name__.rpartition(".")[2]
    return {
        test.replace("test_", f"{name}_", 1): body
        for test, body in vars(suite).items()
        if test.startswith("test_") and test not in ONLY_IN_MEMORY
    }


world = test_commit.world
for suite in SUITES:
    globals().update(renamed(suite))
