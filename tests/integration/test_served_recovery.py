"""Recovery through a server: the commands on `txn://`, its token, and servers killed meanwhile."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import get_args

import pytest

from recovery import Kind, Repaired, check, repair, summary
from tests.integration.commands import run_here
from tests.integration.serving import PATIENCE_S, served, served_here
from tests.integration.test_commands import OTHERS, crashed
from txn import InvalidRequestError, Key, Mutation, Policy, connect
from txn.clock import SystemClock
from txn.errors import CorruptRowError, MaybeApplied, NotApplied, TxnError
from txn.events import silent
from txn.model import Family
from txn.protocol.context import Context
from txn.protocol.statuses import SIX_PHASE, ProtocolName, Status
from txn.stores import open_store
from txn.stores.local import LocalStore

TOKEN = "open-sesame"
PATIENT = Policy(store_patience_ms=PATIENCE_S * 1000, deadline_ms=PATIENCE_S * 1000)
KEYS = [Key(b"%04d" % number, "d", "v", "data") for number in range(1200)]


def run(uri: str, *arguments: str, given: str = "") -> CompletedProcess[str]:
    """Run the command on the server."""
    return run_here(*arguments, given=given, TXN_STORE=uri, COLUMNS="100")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", get_args(ProtocolName))
def test_the_commands_work_through_a_server_with_its_token(
    tmp_path: Path, protocol: ProtocolName
) -> None:
    """Who has no way to the store has one to the server; without the token nothing is told."""
    store, token = f"embedded://{tmp_path}/store", tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    connect(store, protocol=protocol).close()
    decided = crashed(store, Status.ASSERTED).decode()
    options = ("--transactional", "0", "--token-file", str(token), "--protocol", protocol)
    with served(store, tmp_path / "log", *options) as server:
        bare = server.uris["transactional"]
        uri = f"{bare}?token_file={token}"
        for wrong, *command in (
            (bare, "fsck", "--repair", "--grace", "0s"),
            (f"{bare}?token={TOKEN}x", "get", "data/x/d:v"),
        ):
            refused = run(wrong, *command)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert "the token is missing or wrong" in refused.stderr
            assert TOKEN not in refused.stderr

        (row,) = map(json.loads, run(uri, "ls", "--json").stdout.splitlines())
        assert (row["transaction"], row["status"]) == (decided, "2-ASSERTED")
        assert "roll it forward" in run(uri, "show", decided[-6:]).stdout
        mended = run(uri, "fsck", "--scan", "data", "--grace", "0s", "--repair")
        assert mended.returncode == 0 and "rolled forward" in mended.stdout
        assert run(uri, "fsck", "--scan", "data", "--grace", "0s").stdout.startswith("clean")
        converted = run(uri, "convert", "fenced", "--yes")  # its own engine would not know
        assert (converted.returncode, "stop it" in converted.stderr) == (2, True)
        assert TOKEN not in converted.stderr
        document = json.dumps({"mutations": [{"put": "data/x/d:v", "value": "newer"}]})
        assert run(uri, "commit", "-", given=document).returncode == 0
        assert run(uri, "get", "data/x/d:v").stdout.endswith("  newer\n")
        doctor = run(uri, "doctor", "data")
        assert doctor.returncode == 0 and "table data, family d: is safe" in doctor.stdout
        assert TOKEN not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CorruptRowError("the table does not decode"), CorruptRowError),
        (NotApplied("the disk is full"), MaybeApplied),  # what it was, the wire does not say
    ],
)
def test_what_the_servers_store_cannot_do_is_told(
    monkeypatch: pytest.MonkeyPatch, error: TxnError, told: type[TxnError]
) -> None:
    """By an exception of the interface: whoever calls acts by its type."""

    def describe(*_: object) -> None:
        raise error

    with served_here() as here, closing(open_store(here.uri)) as remote:
        monkeypatch.setattr(LocalStore, "describe", describe)
        with pytest.raises(told, match=str(error)):
            remote.describe(b"broken")


def test_a_fenced_database_can_only_be_looked_at_through_thrift_1(tmp_path: Path) -> None:
    """A checked put of that gateway has one column, at the server's time: half of a transaction
    would be seen."""
    with served(
        f"embedded://{tmp_path}/store", tmp_path / "log", "--thrift1", "0", "--thrift2", "0"
    ) as server:
        one, two = server.uris["thrift1"], server.uris["thrift2"]
        with connect(two, table="data", protocol="fenced") as engine:
            engine.ensure_table("data", ["d"])
            done = engine.commit([Mutation(KEYS[0], b"1")], once="token")
            engine.context.store.ensure_table(b"another", {b"t": Family(versions=1)})
        for protocol in (None, "fenced", "six-phase"):
            with pytest.raises(InvalidRequestError, match=r"the store cannot do|another protocol"):
                connect(one, protocol=protocol)
        with pytest.raises(InvalidRequestError, match="Thrift 2 gateway can"):
            connect(one, transactions="another", protocol="fenced")
        assert done.transaction.decode() in run(one, "ls").stdout
        assert "5-COMPLETE" in run(one, "show", done.transaction.decode()).stdout
        assert run(one, "fsck", "--scan", "data").returncode == 0
        for command in (("fsck", "--repair"), ("purge", "--once", "token", "--yes")):
            refused = run(one, *command)
            assert (refused.returncode, "Thrift 2 gateway can" in refused.stderr) == (2, True)
        examined = run(one, "doctor")
        assert (
            examined.returncode,
            "fenced (rows: needed), which this store cannot do" in examined.stdout,
        ) == (
            1,
            True,
        )
        assert "protocol: fenced" in run(two, "doctor").stdout


@pytest.mark.parametrize("name", ["transactional", "thrift2"])
def test_fsck_goes_on_when_its_server_was_killed(tmp_path: Path, name: str) -> None:
    """In the middle of a scan and between repairs, while the next server is still starting."""
    store = f"embedded://{tmp_path}/store?sync=off"
    with connect(store) as engine:
        engine.ensure_table("data", ["d"])
        engine.commit_many([([Mutation(key, b"1")], []) for key in KEYS])
    undecided = crashed(store, Status.WRITTEN)
    decided = crashed(store, Status.ASSERTED, "new", *OTHERS)

    log = tmp_path / "log"
    with (
        served(store, log, f"--{name}", "0") as first,
        ThreadPoolExecutor(1) as pool,
        recovering(first.uris[name]) as context,
    ):
        again = (f"--{name}", str(first.ports[name]))
        findings = check(context, grace_ms=0, retention_ms=0, scan=[b"data"])
        found = [next(findings) for _ in range(10)]
        first.kill()
        rest = pool.submit(list, findings)
        with served(store, log, *again) as second:
            found += rest.result(PATIENCE_S)
            kinds = Counter(finding.kind for finding in found)
            assert kinds == {Kind.EXPIRED: len(KEYS), Kind.UNDECIDED: 1, Kind.DECIDED: 1}
            by_name = {finding.transaction: finding for finding in found}
            assert repair(context, by_name[undecided]) == Repaired("rolled back")
            second.kill()
        last = pool.submit(repair, context, by_name[decided])
        with served(store, log, *again):
            assert last.result(PATIENCE_S) == Repaired("rolled forward")
            assert summary(context, [b"data"]).is_quiet


@contextmanager
def recovering(uri: str) -> Iterator[Context]:
    """What a command that looks and mends has of a store."""
    clock = SystemClock()
    store = open_store(uri, clock)
    try:
        yield Context(store, b"txn", clock, random.Random(1), PATIENT, silent, SIX_PHASE)
    finally:
        store.close()
