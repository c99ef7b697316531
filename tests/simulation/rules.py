"""How a test runs with a rule of the product and without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Patch = pytest.MonkeyPatch
TakeOut = Callable[[Patch], object]

with_and_without = pytest.mark.parametrize("rule", [True, False], ids=["with", "without"])
both_protocols = pytest.mark.parametrize("protocol", ["six-phase", "fenced"])


def without(rule: str | TakeOut, instead: object = None) -> pytest.MarkDecorator:
    """Take out a rule: by a function, or by putting something else in place of a name in txn/."""
    take_out = set_name(rule, instead) if isinstance(rule, str) else rule
    return pytest.mark.parametrize("rule", [None, take_out], ids=["with", "without"], indirect=True)


def set_name(name: str, value: object) -> TakeOut:
    return lambda patch: patch.setattr(f"txn.{name}", value)
