"""Interpreter calls of each path on a real HBase, beside figures that were counted without one."""

from __future__ import annotations

import pytest

from tests.bench import calls
from tests.integration.hbase import HBase


@pytest.mark.parametrize("store", ["native", "gateway"])
def test_no_path_makes_more_calls_than_the_figures_that_are_kept(hbase: HBase, store: str) -> None:
    calls.require_figures_of_this_python()
    uri = hbase.native if store == "native" else hbase.thrift2
    grown = calls.list_grown(calls.count_apart([store], {store: uri}), calls.load().counts)
    assert not grown, calls.explain(grown)
