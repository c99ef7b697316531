"""What a transfer of two keys costs over HBase's own RPC: its requests, and its rounds."""

from __future__ import annotations

import threading

import pytest

from tests.bench.measuring import Protocol
from tests.bench.rounds import EITHER, OTHER, SAME, Placement, count_rounds, recorded
from tests.unit.fake_cluster import fake_cluster
from txn.model import Cell, Check, Edit, Family, Key
from txn.stores import open_store

COUNT = 5


@pytest.mark.parametrize(
    ("protocol", "placement", "requests", "until_decided", "until_unlocked"),
    [
        ("six-phase", SAME, 7, 4, 7),
        ("six-phase", OTHER, 11, 4, 7),
        ("fenced", SAME, 4, 3, 4),
        ("fenced", OTHER, 5, 3, 4),
    ],
)
def test_a_transfer_with_its_read_takes_so_many_requests_in_so_many_rounds(
    protocol: Protocol, placement: Placement, requests: int, until_decided: int, until_unlocked: int
) -> None:
    """The read is the first. The final status is put later, for many with one request."""
    counts = count_rounds(protocol, placement, COUNT)
    assert counts.requests == {requests}
    assert counts.until_decided == {until_decided}
    assert counts.until_unlocked == {until_unlocked}
    assert 0 < counts.later <= 1


def test_a_fenced_transaction_prefers_a_bucket_on_the_server_of_its_keys() -> None:
    assert count_rounds("fenced", EITHER, COUNT).requests == {4}


def test_requests_to_several_servers_are_one_round() -> None:
    near, far = Key("a", "d", "x", "near"), Key("a", "d", "x", "far")
    with fake_cluster(2, lambda table, _: int(table == b"far")) as cluster:
        store = open_store(cluster.uri)
        for key in (near, far):
            assert key.table is not None
            store.ensure_table(key.table, {b"d": Family()})
        store.write([Edit(near, b"1", 5), Edit(far, b"1", 5)])
        with recorded() as rounds:
            assert store.read([near, far]) == {near: Cell(b"1", 5), far: Cell(b"1", 5)}
            assert store.check_and_put(
                [Check(near, b"2", ((near, b"3"),)), Check(far, b"1", ((far, b"2"),))]
            ) == [False, True]
        store.close()
    ports = [server.port for server in cluster.servers]
    made = [
        [(request.server, request.parts) for request in each] for each in list(*rounds.values())
    ]
    assert list(rounds) == [threading.get_ident()]
    assert made == [[(port, ("read",)) for port in ports], [(port, ("values",)) for port in ports]]
