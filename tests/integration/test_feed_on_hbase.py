"""The change feed on a real HBase: the times that it goes by, and what it tells."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any, get_args

import pytest

from tests.integration.hbase import HBase
from txn import InvalidRequestError, Key, Mutation, Outcome, connect
from txn.model import Check
from txn.protocol.row import column, status_key
from txn.protocol.statuses import KeptRows, ProtocolName, Status
from txn.reading.feed import Bounds, ChangeFeed, Decided, Offset, read_changes, refuse_rowless
from txn.reading.instants import find_instant, restore_rows
from txn.spans import Span

DELAY_MS = 50  # all clocks are one here
COMMITS = 12


@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_each_transaction_is_told_once_and_by_the_time_of_its_decision(
    hbase: HBase, protocol: ProtocolName
) -> None:
    """`at.2-ASSERTED` lies between call and answer, and a repeated decision leaves it as it is."""
    name = f"fed-{uuid.uuid4().hex[:8]}"
    rows: KeptRows | None = "always" if protocol == "fenced" else None
    named: dict[str, Any] = {"protocol": protocol, "rows": rows, "salt_buckets": 4}
    with connect(hbase.native, table=name, transactions=f"{name}-txn", **named) as engine:
        engine.ensure_table(name, ["d"])
        clock, context = engine.context.clock, engine.context
        start = Offset(clock.wall_ms() - 1)
        called: dict[bytes, tuple[int, int]] = {}
        for number in range(COMMITS):
            began_ms = clock.wall_ms()
            keys = [Key(f"{row}", "d", "v") for row in (number % 3, "all")]
            done = engine.commit([Mutation(key, f"{number}") for key in keys])
            called[done.transaction] = began_ms, clock.wall_ms()
        clock.sleep_ms(DELAY_MS + 1)

        for row_key, (began_ms, ended_ms) in called.items():
            key = column(context.table, row_key, Status.ASSERTED.at)
            before = context.store.read([key])[key]
            assert before is not None
            assert began_ms <= before.timestamp <= ended_ms
            status = status_key(context.table, row_key)
            decide = Check(status, Status.WRITTEN.value, ((key, b""), (status, b"2-ASSERTED")))
            assert context.store.check_and_put([decide]) == [False]
            assert context.store.read([key])[key] == before

        feed, told = ChangeFeed(context, Bounds(DELAY_MS)), list[Decided]()
        while (end := feed.find_end(start, most=5)) is not start:
            part = feed.list_part(start, end)
            assert ChangeFeed(context, Bounds(DELAY_MS)).list_part(start, end) == part
            told, start = told + part, end
        assert Counter(each.row_key for each in told) == Counter(called.keys())
        of_one = [c for c in read_changes(context, told) if c.key.row == b"all"]
        assert [change.value for change in of_one] == [b"%d" % i for i in range(COMMITS)]
        versions = [change.timestamp for change in of_one]
        assert [change.replaced for change in of_one] == [0, *versions[:-1]]


@pytest.mark.parametrize("rows", get_args(KeptRows))
def test_a_commit_in_one_unit_is_told_where_the_database_keeps_all_rows(
    hbase: HBase, rows: KeptRows
) -> None:
    name, keeps_rows = f"fed-{uuid.uuid4().hex[:8]}", rows == "always"
    key = Key("a", "d", "v", name)
    open_engine = partial(connect, hbase.native, transactions=f"{name}-txn")
    with open_engine(protocol="fenced", rows=rows) as engine:
        engine.ensure_table(name, ["d"])
        start = Offset(engine.context.clock.wall_ms() - 1)
    for number, uri in enumerate((hbase.native, hbase.thrift2)):
        with connect(uri, transactions=f"{name}-txn") as engine:
            done = engine.commit([Mutation(key, f"{number}")])
            outcome = engine.outcome(done.transaction)
            assert outcome is (Outcome.COMMITTED if keeps_rows else Outcome.UNKNOWN)
            with nullcontext() if keeps_rows else pytest.raises(InvalidRequestError):
                refuse_rowless(engine.context, is_known=False)
    with open_engine() as engine:
        engine.context.clock.sleep_ms(DELAY_MS + 1)
        feed = ChangeFeed(engine.context, Bounds(DELAY_MS))
        told = read_changes(engine.context, feed.list_part(start, feed.find_end(start)))
        assert [change.value for change in told] == ([b"0", b"1"] if keeps_rows else [])
        instant = find_instant(engine.context, Bounds(0, 10_000))
        engine.commit([Mutation(key, "2")])
        if keeps_rows:
            span = Span(name.encode())
            (row,) = restore_rows(engine.context, [span], instant, engine.backend.scan(span))
            assert row.cells[key].value == b"1"


def test_gateways_tell_the_same_and_are_told_of(hbase: HBase) -> None:
    name = f"fed-{uuid.uuid4().hex[:8]}"
    with connect(hbase.native, table=name, transactions=f"{name}-txn") as engine:
        engine.ensure_table(name, ["d"])
        start = Offset(engine.context.clock.wall_ms() - 1)
    done = []
    for uri in (hbase.native, hbase.thrift1, hbase.thrift2):
        with connect(uri, table=name, transactions=f"{name}-txn") as engine:
            done.append(engine.commit([Mutation(Key("a", "d", "v"), uri)]).transaction)
    for uri in (hbase.native, hbase.thrift1, hbase.thrift2):
        with connect(uri, table=name, transactions=f"{name}-txn") as engine:
            engine.context.clock.sleep_ms(DELAY_MS + 1)
            feed = ChangeFeed(engine.context, Bounds(DELAY_MS))
            end = feed.find_end(start)
            part = feed.list_part(start, end)
            assert [each.row_key for each in part] == done
            assert [c.transaction for c in read_changes(engine.context, part)] == done
            assert not end.undecided
