"""Which faults a run has, whatever its seed."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from tests.chaos.faults import planned

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("seed", range(5))
def test_every_run_begins_with_each_kind_that_it_must_have(seed: int) -> None:
    """A short run would else be at the mercy of chance."""
    first = {(fault.kind, fault.victims[0][:6]) for _, fault in islice(planned(Random(seed)), 4)}
    assert first == {
        ("kill", "thrift"),
        ("kill", "region"),
        ("split", "region"),
        ("move", "region"),
    }


def test_chance_brings_every_kind_again() -> None:
    """Servers that were split are killed later, and the other way round."""
    kinds = {fault.kind for _, fault in islice(planned(Random(1)), 4, 200)}
    assert kinds == {"kill", "pause", "move", "split"}
