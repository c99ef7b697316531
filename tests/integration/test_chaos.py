"""The short form of `make chaos`: a client, a gateway and a region server are killed, regions are
split and moved, and more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.crew import WRITERS
from tests.chaos.report import document
from tests.chaos.run import Plan, run
from txn.cluster.jars import JarError, fetch
from txn.host.java import JavaNotFoundError, find_java_home
from txn.protocol.statuses import ProtocolName

SECONDS = 20
LONGEST_S = 2400


@pytest.fixture
def cluster_is_to_be_had() -> None:
    """Without Java or the jars the test is skipped, which CI does not accept."""
    try:
        find_java_home()
        fetch()
    except (JavaNotFoundError, JarError) as error:
        pytest.skip(f"no HBase: {error}")


@pytest.mark.usefixtures("cluster_is_to_be_had")
@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("protocol", ["six-phase", pytest.param("fenced", marks=pytest.mark.long)])
def test_nothing_is_lost_when_clients_and_servers_are_killed(
    tmp_path: Path, protocol: ProtocolName
) -> None:
    """On a real HBase: no reported commit is lost, no reported abort appears, the total holds at
    every atomic read, the history is strictly serialisable, and fsck ends clean."""
    result = run(Plan(tmp_path, SECONDS, client_fault_each_s=1.0, protocol=protocol))
    figures = document(result)
    assert result.violations == [], figures
    hurt = {what.partition(" (")[0].rstrip("12s") for what in figures["faults"]}
    assert {"kill client", "kill thrift", "kill region", "move region", "split region"} <= hurt
    assert all(figures["committed_by"][kind] > 0 for kind in WRITERS)
    assert figures["atomic_reads_of_all"] > 0
    assert figures["atomic_reads_of_some"] > 0
