"""The rule of a safeguard's test: `teeth.without` takes it out for the second of two runs."""

from __future__ import annotations

import pytest


@pytest.fixture
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the rule is there."""
    if request.param is not None:
        request.param(monkeypatch)
    return request.param is None
