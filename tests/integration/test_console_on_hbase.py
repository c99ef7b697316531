"""The console over a real HBase, natively and through a gateway, asked without a browser."""

from __future__ import annotations

import re
import time
import uuid
from html import unescape
from pathlib import Path

import pytest

from tests.console.served import ServedConsole, serve_store
from tests.console.visits import ask, post
from tests.integration.hbase import HBase
from tests.integration.test_commands_on_hbase import crash_once_decided
from txn import Engine, Key, Mutation, connect
from txn.stores import open_store
from txn.testing.faulty import Crash, FaultyStore

PATIENCE_S = 60


def wait_for(served: ServedConsole, path: str, words: str) -> str:
    """Return a page once it has the words."""
    deadline = time.monotonic() + PATIENCE_S
    while words not in (page := unescape(ask(served.url + path).body)):
        assert time.monotonic() < deadline, page
        time.sleep(0.3)
    return page


def wait_for_size(served: ServedConsole, table: str) -> list[str]:
    """Return what the Keys page tells of a table once its region server has reported it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        row = ask(f"{served.url}/key").body.partition(f">{table}</a>")[2].partition("</tr>")[0]
        found = re.findall(r"<td[^>]*>([^<]*)</td>", row)
        if found[0] != "\u2013" or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


@pytest.mark.parametrize("kind", ["native", "thrift2"])
def test_what_a_dead_client_left_is_shown_and_mended(
    hbase: HBase, kind: str, tmp_path: Path
) -> None:
    uri = getattr(hbase, kind)
    data, transactions = (f"console-{part}-{uuid.uuid4().hex[:8]}" for part in ("data", "txn"))
    key = Key("x", "d", "v", data)
    with connect(uri, transactions=transactions) as engine:
        engine.ensure_table(data, ["d"])
        engine.commit([Mutation(key, "1")], labels={"job": "first"})
    store = open_store(uri)
    with pytest.raises(Crash):
        Engine(FaultyStore(store, crash_once_decided), transactions=transactions).commit(
            [Mutation(key, "2")], labels={"job": "second"}
        )
    store.close()
    with serve_store(uri, tmp_path / "log", "--transactions", transactions) as served:
        wait_for(served, "/", ">2-ASSERTED</span>")
        found = unescape(ask(f"{served.url}/transactions?label=second").body)
        (link,) = set(re.findall(r'href="(/transaction\?id=[^"]+)"', found))
        assert "roll it forward" in unescape(ask(served.url + link).body)
        shown = unescape(ask(f"{served.url}/key?key={data}/x/d:v").body)
        assert shown.count("/transaction?id=") == 3  # its holder, and the two that named it
        assert "job=first" in shown
        assert ">1<" in shown
        regions, cells, size = wait_for_size(served, data)
        assert (regions, cells) == ("1", "\u2013")
        assert size.endswith(" MB") if kind == "native" else size == "\u2013"
        assert post(f"{served.url}/fsck", {"grace": "0s", "tables": data}).status == 303
        wait_for(served, "/fsck", "Repair all")
        token = {"Authorization": f"Bearer {served.token}"}
        assert ask(f"{served.url}/fsck/repair", "POST", {"check": "1"}, token).status == 303
        wait_for(served, f"/key?key={data}/x/d:v", ">2<")
    with connect(uri, transactions=transactions) as engine:
        found_cell = engine.read([key])[key]
        assert found_cell is not None
        assert found_cell.value == b"2"
