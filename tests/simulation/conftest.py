"""What the tests of safeguards begin with."""

from __future__ import annotations

import pytest

from tests.simulation.world import World
from txn.protocol.statuses import ProtocolName


@pytest.fixture
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the rule is there, which `teeth.without` takes out for the second of two runs."""
    if request.param is not None:
        request.param(monkeypatch)
    return request.param is None


@pytest.fixture
def protocol() -> ProtocolName:
    return "six-phase"


@pytest.fixture
def world(request: pytest.FixtureRequest, protocol: ProtocolName) -> World:
    if "rule" in request.fixturenames:
        request.getfixturevalue("rule")
    return World(protocol=protocol)
