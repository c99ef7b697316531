"""Forks: whatever expects them is told before and after, on both sides."""

from __future__ import annotations

import gc
import os

import pytest

from txn.host import forks
from txn.host.forks import Forked, start_in_each_process

pytestmark = pytest.mark.fast


class Noting(Forked):
    """Something that notes what it is told, in a list that a child has a copy of."""

    def __init__(self, told: list[str]) -> None:
        self._prepared = told
        self.expect_forks()

    def before_fork(self) -> None:
        self._prepared.append("before")

    def after_fork(self, in_child: bool) -> None:
        self._prepared.append("in the child" if in_child else "in the parent")


class Starting:
    """Something that notes each start."""

    def __init__(self, told: list[str]) -> None:
        self._prepared = told
        start_in_each_process(self._start)

    def _start(self) -> None:
        self._prepared.append("start")


def fork(told: list[str], wanted: list[str]) -> bool:
    """Fork; return whether the child was told what is wanted of it."""
    child = os.fork()
    if child == 0:
        os._exit(0 if told == wanted else 1)
    return os.waitpid(child, 0)[1] == 0


def test_each_side_is_told_which_it_is() -> None:
    """A child must not use what its parent uses."""
    told: list[str] = []
    noting = Noting(told)
    assert fork(told, ["before", "in the child"])
    assert told == ["before", "in the parent"]
    assert fork(told, ["before", "in the parent", "before", "in the child"])
    assert noting


def test_what_is_gone_is_not_told() -> None:
    """Nothing lives longer for having expected forks."""
    told: list[str] = []
    Noting(told)
    gc.collect()
    assert fork(told, [])
    assert told == []


def test_a_start_is_made_again_in_each_child() -> None:
    """In the child alone; a child of a child has one more."""
    told: list[str] = []
    starting = Starting(told)
    assert fork(told, ["start", "start"])
    assert told == ["start"]
    child = os.fork()
    if child == 0:
        os._exit(0 if fork(told, ["start"] * 3) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert starting


def test_what_starts_lives_no_longer_for_it() -> None:
    """Nor is anything of it left behind."""
    told: list[str] = []
    Starting(told)
    gc.collect()
    assert fork(told, ["start"])
    assert not any(isinstance(owner, Starting) for owner in forks._STARTS)
