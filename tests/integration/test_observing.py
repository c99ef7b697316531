"""Metrics and spans between processes: what `txn serve` shows, and what goes over `txn://`."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest
import thriftpy2
from opentelemetry.trace import SpanKind

from tests.console.visits import Answer, ask
from tests.integration.serving import client, raw, served
from tests.tracing import (
    PROVIDER,
    SPANS_VARIABLE,
    Spans,
    attribute,
    id_of,
    parent_of,
    read_spans,
    traced,
)
from txn import AssertionFailedError, Exact, Key, Mutation, connect
from txn.clock import SystemClock
from txn.server.options import listen
from txn.server.ports import Server
from txn.service import messages
from txn.service.server import Transactional
from txn.stores.local import LocalStore
from txn.tables.kv.memory import MemoryStore

X, Y = (Key(row, "d", "v", "data") for row in "xy")


def read_metrics(uri: str) -> str:
    with urllib.request.urlopen(uri, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


def value(page: str, sample: str) -> float:
    (found,) = re.findall(rf"^{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    return float(found)


COMMITTED = 'hbase_txn_commit_seconds_count{outcome="committed"}'


def commit(uri: str, count: int) -> None:
    with connect(uri, table="data") as engine:
        for number in range(count):
            engine.commit([Mutation(Key(f"{os.getpid()} {number}", "d", "v"), "1")])


def test_a_server_shows_what_becomes_of_its_transactions(tmp_path: Path) -> None:
    arguments = ("--transactional", "0", "--metrics", "0")
    with served("memory://", tmp_path / "log", *arguments) as server:
        with connect(server.uris["transactional"], table="data") as engine:
            engine.ensure_table("data", ["d"])
            engine.commit([Mutation(X, "1")])
            with pytest.raises(AssertionFailedError):
                engine.commit([], [Exact(X, "2")])
        with raw(server.ports["metrics"]):  # one who says nothing keeps nobody
            page = read_metrics(server.uris["metrics"])
        assert ask(server.uris["metrics"], "HEAD") == Answer(200, ANY, "")
        assert value(page, COMMITTED) == 1
        assert value(page, "hbase_txn_oldest_unfinished_seconds") == 0
        assert read_metrics(server.uris["metrics"].replace("metrics", "healthz")) == "ok\n"
        assert value(page, 'hbase_txn_commit_seconds_count{outcome="assertion"}') == 1
        assert value(page, 'hbase_txn_store_seconds_count{call="atomically",outcome="done"}') >= 1
        assert server.stop() == 0
    assert server.log.read_text() == ""


def test_each_worker_shows_the_sums_of_all(tmp_path: Path) -> None:
    arguments = ("--transactional", "0", "--metrics", "0", "--workers", "3")
    store = f"embedded://{tmp_path}/store?sync=off"
    with served(store, tmp_path / "log", *arguments) as server:
        uri, metrics = server.uris["transactional"], server.uris["metrics"]
        with connect(uri, table="data") as engine:
            engine.ensure_table("data", ["d"])
        with ThreadPoolExecutor(6) as pool:  # each a connection of its own
            list(pool.map(lambda _: commit(uri, 5), range(6)))
        assert {value(read_metrics(metrics), COMMITTED) for _ in range(12)} == {30}
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        commit(uri, 1)
        assert value(read_metrics(metrics), COMMITTED) == 31
        assert server.stop() == 0


@pytest.fixture
def spans() -> Iterator[Spans]:
    with traced() as found:
        yield found


@contextmanager
def endpoint() -> Iterator[str]:
    """The service in this process."""
    hosted = Transactional(LocalStore(MemoryStore(), SystemClock()))
    with Server([(listen("127.0.0.1", 0), hosted.service)]) as server:
        yield f"txn://127.0.0.1:{server.ports[0]}"
    hosted.flush()


def test_a_server_s_span_is_a_child_of_its_client_s(spans: Spans) -> None:
    with endpoint() as uri, connect(uri, table="data") as engine:
        engine.ensure_table("data", ["d"])
        with spans.tracer.start_as_current_span("caller") as caller:
            done = engine.commit([Mutation(X, "1")])
        with pytest.raises(AssertionFailedError):
            engine.commit([], [Exact(X, "2")])
    here, there, refused, refusing = spans.commits()
    assert (here.kind, there.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
    assert parent_of(here) == id_of(caller)
    assert parent_of(there) == id_of(here)
    assert [event.name for event in here.events] == []
    assert "decide" in [event.name for event in there.events]
    for span in (here, there):
        assert attribute(span, "txn.transaction") == done.transaction.decode()
    assert parent_of(refusing) == id_of(refused)
    assert [attribute(span, "txn.outcome") for span in (refused, refusing)] == ["assertion"] * 2


def test_workers_send_their_spans_before_they_end(
    spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin as forks of a process that traces already, and end without Python's own end."""
    (tmp_path / "sitecustomize.py").write_text(PROVIDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv(SPANS_VARIABLE, str(tmp_path / "spans"))
    store = f"embedded://{tmp_path}/store?sync=off"
    arguments = ("--transactional", "0", "--workers", "2")
    with served(store, tmp_path / "log", *arguments) as server:
        with connect(server.uris["transactional"], table="data") as engine:
            engine.ensure_table("data", ["d"])
            engine.commit([Mutation(X, "1")])
        assert server.stop() == 0
    (here,) = spans.commits()
    (there,) = read_spans(tmp_path / "spans")
    assert there["parent_id"] == f"0x{id_of(here):016x}"
    assert there["context"]["trace_id"] == f"0x{here.context.trace_id:032x}"


def test_an_older_client_is_served_as_ever(spans: Spans, tmp_path: Path) -> None:
    """Its interface has no field `trace`, as that of any other Thrift client."""
    text = Path(messages.__file__).with_name("transactional.thrift").read_text()
    lines = [line for line in text.splitlines() if "map<string, string> trace" not in line]
    assert len(lines) == len(text.splitlines()) - 2
    (tmp_path / "older.thrift").write_text("\n".join(lines))
    older = thriftpy2.load(str(tmp_path / "older.thrift"), module_name="txn_older_thrift")
    with endpoint() as uri:
        with connect(uri) as engine:
            engine.ensure_table("data", ["d"])
        spans.clear()
        with client(int(uri.rpartition(":")[2]), service=older.Transactional) as plain:
            key = older.Key(b"x", b"d", b"v", b"data")
            assert plain.commit([older.Mutation(key, b"1")], None, older.Options()).complete
            (done,) = plain.commitMany([older.Request([older.Mutation(key, b"2")])], None)
            assert done.committed.complete
    assert [parent_of(span) for span in spans.commits()] == [None, None]
