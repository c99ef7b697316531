"""What is built once for all tests of a release."""

import pytest

from tests.release.building import (
    Distributions,
    Environment,
    build_distributions,
    make_environment,
)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build_distributions(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def core(built: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel in a clean environment, without any extra."""
    return make_environment(tmp_path_factory.mktemp("core") / "venv", built.wheel)
