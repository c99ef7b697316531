"""The simulation of queues behind docs/scale.md: what it must agree with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.bench import costs, report, scale
from tests.bench.growth import Growing
from tests.bench.queues import (
    Costs,
    Kind,
    Part,
    Price,
    Process,
    Protocol,
    Setup,
    World,
    join_parts,
    price_request,
    simulate,
)
from txn.client.finisher import COMPLETE_WITHIN_S, COMPLETED_AT_ONCE

pytestmark = pytest.mark.fast
KINDS: tuple[Kind, ...] = ("get", "put", "checked")
NOTHING = Price(0.0, 0.0)
MS = 1e-3


def make_costs(**given: Any) -> Costs:
    """Return costs of nothing but what is given."""
    free: dict[Kind, Price] = dict.fromkeys(KINDS, NOTHING)
    protocols: dict[Protocol, Price] = {"fenced": NOTHING, "six-phase": NOTHING}
    return Costs(**{"server": free, "client": free, "protocol": protocols, **given})


WAITING = make_costs(sync=2 * MS, network=1 * MS)
FAST = make_costs(
    server=dict.fromkeys(KINDS, Price(0.1 * MS, 0.02 * MS)), sync=0.5 * MS, network=0.2 * MS
)


@pytest.mark.parametrize(("protocol", "rounds", "syncs"), [("fenced", 4, 3), ("six-phase", 6, 4)])
def test_one_client_waits_for_each_round_of_its_protocol(
    protocol: Protocol, rounds: int, syncs: int
) -> None:
    """Read, lock, decide, finish; or lock, assert, decide, put, clean, unlock, of which the second
    and the last do not wait for the log. The row travels with the locks, and nobody waits for 5."""
    setup = Setup(protocol, clients=1, keys=5, commits=20)
    found = simulate(setup, WAITING)
    assert found.latency_ms == pytest.approx(rounds * 1 + syncs * 2)
    assert found.per_second == pytest.approx(1000 / found.latency_ms)
    assert found.attempts == 1


def test_what_is_in_one_unit_is_a_read_and_a_checked_put() -> None:
    """As in docs/protocol.md, "All of it in one unit"."""
    assert simulate(Setup(clients=1, keys=1, commits=20), WAITING).latency_ms == pytest.approx(4)


def test_what_travels_together_is_one_request_for_each_server() -> None:
    """It costs as the dearest of its kinds, and waits for the log unless all writes in it are
    deferred."""
    world = World(Setup(servers=2), FAST)
    one, other = world.servers
    parts = [
        Part(one, "checked", is_deferred=True),
        Part(one, "put", is_deferred=True),
        Part(one, "get"),
        Part(other, "put", is_deferred=True),
        Part(other, "checked"),
    ]
    calls = join_parts(parts)
    assert [(call.server, call.rows.total()) for call in calls] == [(one, 3), (other, 2)]
    assert [call.is_synced for call in calls] == [False, True]
    prices: dict[Kind, Price] = {"get": Price(1, 2), "put": Price(3, 4), "checked": Price(5, 6)}
    assert price_request(prices, calls[0].rows) == 5 + 2 + 4 + 6


def test_rows_are_completed_together() -> None:
    """Those of one process, a twentieth of a second later, or once they are a hundred."""
    world = World(Setup(), FAST)
    process, server = Process(world), world.servers[0]
    sent = list[tuple[float, int]]()
    with patch.object(server, "take", lambda call, _: sent.append((world.now, call.rows["put"]))):
        for count in (2, COMPLETED_AT_ONCE, 1):
            for _ in range(count):
                process.complete_later(Part(server, "put", is_deferred=True))
        while len(sent) < 2:
            world.step()
    travelled = FAST.network / 2
    assert sent == [
        (pytest.approx(travelled), COMPLETED_AT_ONCE),
        (pytest.approx(COMPLETE_WITHIN_S + travelled), 3),
    ]


def test_a_row_prefers_the_server_of_its_keys() -> None:
    """If there are buckets on it."""
    near = World(Setup(servers=4, buckets=8), FAST)
    assert all(near.choose_bucket([key]) is near.server_of(key) for key in range(20))
    far = World(Setup(servers=4, buckets=1), FAST)
    assert {far.choose_bucket([key]) for key in range(20)} == {far.servers[0]}


def test_it_is_repeatable() -> None:
    """With a seed."""
    setup = Setup(clients=32, processes=32, skew=1.0, rows=100, reads=True, commits=300)
    assert simulate(setup, FAST) == simulate(setup, FAST)
    assert simulate(setup, FAST) != simulate(replace(setup, seed=2), FAST)


def test_no_more_is_done_than_processors_can() -> None:
    """A fenced transfer on one server is a get of two rows, a request of three, which takes the
    locks, one of one, which decides, one of two, and its share of the last, of many rows."""
    setup = Setup(cores=2, handlers=1000, clients=100, commits=2000)
    found = simulate(setup, FAST)
    work = 4.01 * 0.1 * MS + 9 * 0.02 * MS
    assert found.average == pytest.approx(1, abs=0.02)
    assert found.per_second == pytest.approx(2 / work, rel=0.03)
    assert scale.find_full(setup, found) == "all servers' processors"


def test_handlers_wait_for_the_log() -> None:
    """So that few of them do less than the processors could."""
    setup = Setup(cores=64, handlers=4, clients=200, processes=200, commits=400)
    found = simulate(setup, FAST)
    assert found.held == pytest.approx(1, abs=0.02)
    assert scale.find_full(setup, found) == "handlers"
    assert simulate(replace(setup, handlers=400), FAST).per_second > 3 * found.per_second


def test_one_bucket_is_one_server() -> None:
    """More of them spread the transaction rows."""
    setup = Setup(servers=8, cores=1, handlers=1000, clients=200, processes=200, commits=600)
    one, eight = (simulate(replace(setup, buckets=buckets), FAST) for buckets in (1, 8))
    assert scale.find_full(setup, one) == "one server's processors"
    assert eight.per_second > 1.5 * one.per_second


def test_keys_in_demand_are_tried_again() -> None:
    """And all the more where they are more uneven."""
    setup = Setup(clients=32, processes=32, rows=1000, reads=True, commits=500)
    even, uneven = (simulate(replace(setup, skew=skew), FAST) for skew in (0.0, 1.2))
    assert even.attempts < 1.1
    assert uneven.attempts > 1.5
    assert uneven.per_second < even.per_second


def test_threads_of_a_process_share_an_interpreter() -> None:
    """And everything on a machine shares its processors."""
    given = replace(FAST, protocol={"fenced": Price(1 * MS, 0), "six-phase": NOTHING})
    setup = Setup(clients=16, commits=500)
    assert simulate(setup, given).per_second == pytest.approx(1000, rel=0.15)
    assert simulate(replace(setup, processes=16), given).per_second > 3000
    shared = simulate(replace(setup, processes=16, machine=2), given)
    completed_together = 1250 / 16 * COMPLETE_WITHIN_S
    work = (4 + 1 / completed_together) * 0.1 * MS + 9 * 0.02 * MS
    assert shared.per_second == pytest.approx(2 / (1 * MS + work), rel=0.05)


def make_kept() -> dict[str, Any]:
    """Return figures as `costs` keeps them."""
    calls = {}
    for place, kind in enumerate(KINDS):
        for size in costs.SIZES:
            for threads in costs.THREADS:
                calls[f"{kind} {size} {threads}"] = {
                    "ms": 0.5 + 0.5 * (kind != "get"),
                    "client_us": 50 + size,
                    "server_us": 100 + 10 * size * (place + 1),
                    "gateway_us": 20.0,
                }
    by_keys = {"2": 200.0, "50": 680.0}
    return {
        "stores": {"native": calls},
        "client": {"fenced": by_keys, "six-phase": by_keys},
    }


def test_costs_are_a_part_for_the_request_and_one_for_each_row() -> None:
    """Of what was measured with 1 row and with 100."""
    read = scale.read_costs(make_kept(), "native", 8, gateway=False)
    assert read.server["put"].of(1) == pytest.approx(120e-6)
    assert read.server["put"].of(100) == pytest.approx(2100e-6)
    assert read.client["get"].of(10) == pytest.approx(60e-6)
    assert read.protocol["fenced"].of(10) == pytest.approx(280e-6)
    assert read.network == pytest.approx(319e-6)
    assert read.sync == pytest.approx(1000e-6 - 191e-6 - 319e-6)
    with_gateway = scale.read_costs(make_kept(), "native", 8, gateway=True)
    assert with_gateway.server["put"].of(1) == pytest.approx(140e-6)


def test_the_study_and_the_check_are_told_in_tables() -> None:
    """Every line has a cell for each column."""
    for name, cases in scale.study(16, 30).items():
        assert {setup.protocol for _, setup in cases} == set(scale.PROTOCOLS)
        given = [
            (x, replace(s, servers=2, clients=4, processes=4, commits=8)) for x, s in cases[:4]
        ]
        result = simulate(given[0][1], FAST)
        rows = [scale.row_of(x, setup, result) for x, setup in given]
        head, body = scale.lines(name, rows)
        assert all(len(line) == len(head) for line in body)
        if name == "servers":
            assert body[0][:3] == ["1", "1", "30"]
            head, body = scale.page_lines(rows)
            assert all(len(line) == len(head) for line in body)
            assert body[0][:3] == ["1", "1", "30"]


def test_the_page_shows_the_kept_study() -> None:
    """Its table is not written by hand."""
    kept = json.loads(scale.KEPT.read_text())
    head, body = scale.page_lines(kept["servers"])
    page = scale.PAGE.read_text()
    assert all(report.join_cells(line) in page for line in (head, *body))


def test_what_is_checked_is_simulated_as_it_was_measured() -> None:
    """On one machine, with the clients of the task."""
    task = Growing("fenced", keys=10, clients=16, processes=4, skew=1.0)
    setup = scale.Point(task, 3).setup
    assert (setup.protocol, setup.servers, setup.keys, setup.clients) == ("fenced", 3, 10, 16)
    assert setup.reads
    assert setup.machine
