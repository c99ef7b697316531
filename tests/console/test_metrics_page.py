"""What the console tells Prometheus, and what servers tell the console."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families

from tests.console.conftest import Browse, Serve
from tests.console.crashing import crash_client
from tests.integration.serving import served
from txn import Key, Mutation, connect
from txn.protocol.statuses import Status

OBSERVING = (Path(__file__).parents[2] / "docs" / "observing.md").read_text()
PATIENCE_S = 30


def ask(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def test_prometheus_is_told_what_is_unfinished(serve: Serve, tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store"
    crash_client(store, Status.ASSERTED, [b"pears"])
    url = serve(store).url
    deadline = time.monotonic() + PATIENCE_S
    while "oldest_unfinished" not in (text := ask(url)):  # it begins to look with the first visit
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    text = ask(url)  # with the calls of the first answer
    assert 'hbase_txn_unfinished_transactions{status="2-ASSERTED"} 1.0' in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (oldest,) = families["hbase_txn_oldest_unfinished_seconds"].samples
    assert oldest.value > 0
    assert any(sample.value for sample in families["hbase_txn_store_seconds"].samples)
    names = re.findall(r"^# TYPE (hbase_txn\w+) (\w+)", text, re.MULTILINE)
    told = [name for name, _ in names if not name.endswith("_created")]
    assert [name for name in told if f"`{name}`" not in OBSERVING] == []


def test_health_needs_no_token(serve: Serve, tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store"
    connect(store).close()
    request = urllib.request.Request(f"{serve(store).url}/healthz", headers={"Host": "elsewhere"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert (answer.status, answer.read()) == (200, b"ok\n")


def test_what_servers_count_is_shown(serve: Serve, browse: Browse, tmp_path: Path) -> None:
    store = f"embedded://{tmp_path}/store"
    crash_client(store, Status.LOCKED, [b"pears"])
    with served(store, tmp_path / "log", "--transactional", "0", "--metrics", "0") as server:
        page = browse(serve(store, "--metrics-from", server.uris["metrics"]).url + "/")
        expect(page.get_by_role("heading", name="Counts of servers")).to_be_visible()
        with connect(server.uris["transactional"], table="stock") as engine:
            engine.commit([Mutation(Key("pears", "d", "count"), "1")])  # once the lease is over
        for name in ("Lock conflicts in stock", "Transactions of dead clients rolled back"):
            expect(page.get_by_role("row", name=name)).to_be_visible(timeout=PATIENCE_S * 1_000)
        latency = page.get_by_role("region", name="Latency by phase")
        expect(latency.get_by_role("columnheader", name="Batches")).to_be_visible()
        expect(latency.get_by_role("rowheader", name="decide")).to_be_visible()
