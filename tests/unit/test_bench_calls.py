"""Interpreter calls of each path on the stores of this machine; those on HBase are counted in
tests/integration/test_calls_on_hbase.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import calls
from tests.bench.calls import Count

READ = Count("memory", "fenced", "read", 100)


@pytest.mark.parametrize("store", ["memory", "embedded"])
def test_no_path_makes_more_calls_than_the_figures_that_are_kept(store: str) -> None:
    """A layer or a repeated lookup shows here, and not in the time of a commit on a busy machine.
    Figures of another Python say nothing; CI, which accepts no skipped test, refuses them."""
    calls.require_figures_of_this_python()
    grown = calls.list_grown(calls.count_apart([store], {}), calls.load().counts)
    assert not grown, calls.explain(grown)


def test_figures_are_kept_for_every_path_of_every_store() -> None:
    kept = {count.name for count in calls.load().counts}
    assert kept == {
        Count(store, protocol, path, 0).name
        for store in calls.STORES
        for protocol in calls.PROTOCOLS
        for path in calls.PATHS
    }


@pytest.mark.parametrize("now", [100, 105, 50])
def test_a_path_may_make_fewer_calls_or_a_few_more(now: float) -> None:
    assert not calls.list_grown([READ._replace(calls=now)], [READ])


def test_a_path_without_a_figure_is_no_less_a_finding() -> None:
    """Otherwise a path that is added, or renamed, would never be compared."""
    assert calls.list_grown([READ], []) == [
        "read, memory, fenced: 100 calls, and no figure is kept"
    ]


def test_figures_of_another_python_are_not_compared(tmp_path: Path) -> None:
    calls.save([READ], path := tmp_path / "calls.json")
    calls.require_figures_of_this_python(path)
    path.write_text(path.read_text().replace(calls.VERSION, "2.7"))
    with pytest.raises(pytest.skip.Exception, match=r"of Python 2\.7, and this is"):
        calls.require_figures_of_this_python(path)


def test_the_calls_of_python_and_of_c_are_counted_in_the_work_alone() -> None:
    def work() -> None:
        len("")
        nothing()

    def nothing() -> None:
        pass

    assert calls.count_calls(work) == 2
    assert calls.count_calls(nothing) == 0
