"""The Thrift stores on a real HBase: tables, both kinds at once, and ways to connect."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random, SystemRandom

import pytest

from recovery import check, repair, summary
from recovery.commands import app
from recovery.doctor import Verdict, examine
from tests.integration.hbase import HBase
from txn import AbortedError, Delete, Engine, Key, Mutation, Policy, Version, connect
from txn.clock import SystemClock
from txn.cluster.configuration import Role, make_class_path, make_command
from txn.cluster.jars import fetch, read_locked
from txn.cluster.processes import end, launch
from txn.cluster.settings import Settings, claim_ports
from txn.errors import InvalidRequestError, MaybeApplied, NotApplied, TableUnavailable
from txn.host.java import find_java_home
from txn.model import Cell, Check, Edit, Family
from txn.protocol.row import FAMILY
from txn.stores import open_store
from txn.stores.gateway import Connection
from txn.stores.hbase.store import HBaseStore
from txn.stores.hbase.thrift2 import IDL
from txn.testing.counting import CountingStore

TLS = Path(__file__).with_name("tls")
ACCOUNTS = 5
BALANCE = 100
BANK_S = 4
ENOUGH = 10  # transfers through each gateway, however long they take
ATTEMPTED_WITHIN_S = 300
READY_S = 180


def fresh(name: str) -> bytes:
    return f"{name}-{uuid.uuid4().hex[:8]}".encode()


@pytest.fixture(scope="module")
def store(hbase: HBase) -> Iterator[HBaseStore]:
    store = open_store(hbase.thrift2)
    assert isinstance(store, HBaseStore)
    yield store
    store.close()


def make_as_hbase_does(store: HBaseStore, table: bytes, **settings: object) -> None:
    """Make a table with HBase's defaults, and other settings of the table or its family d."""
    attributes = {
        name.encode(): str(value).encode() for name, value in settings.items() if name.isupper()
    }
    family = IDL.TColumnFamilyDescriptor(
        name=b"d", attributes=attributes, timeToLive=settings.get("ttl_s")
    )
    descriptor = IDL.TTableDescriptor(
        IDL.TTableName(None, table), [family], durability=settings.get("durability")
    )

    store._pool.run_one(Connection.ask, "createTable", descriptor, None, repeat=False)


# --- tables -------------------------------------------------------------------------------------


def test_families_keep_their_markers_for_longer_than_transactions_are_kept(
    store: HBaseStore,
) -> None:
    """A purged marker no longer masks a late duplicate of an older put."""
    table = fresh("kept")
    store.ensure_table(table, {b"d": Family()})
    store.ensure_table(table, {b"e": Family(versions=1, keep_deletes_ms=90_000_001)})
    found = store.describe(table) or {}
    assert found[b"d"] == Family(versions=3, keep_deletes_ms=25 * 3_600_000)
    assert found[b"e"] == Family(versions=1, keep_deletes_ms=90_000_001)


def test_buckets_of_transactions_are_regions_from_the_start(
    hbase: HBase, store: HBaseStore
) -> None:
    """All transactions begin in one region otherwise, whatever their bucket."""
    table = fresh("buckets")
    with connect(hbase.thrift2, transactions=table, salt_buckets=4) as engine:
        data = fresh("data")
        engine.ensure_table(data, ["d"])
        engine.commit([Mutation(Key("a", "d", "x", data), b"1")])

    starts = store._pool.run_one(store._dialect.starts, table, repeat=True)
    assert sorted(starts) == [b"", b"01.", b"02.", b"03."]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["thrift1", "thrift2"])
def test_large_values_do_not_end_a_gateway(hbase: HBase, kind: str) -> None:
    """The gateways of the tests have 320 MB: 120 values of 2 MB at once ended one, for all
    clients."""
    count, length = 120, 2_000_000
    data = fresh("large")
    keys = [Key(f"{number:04}", "d", "x", data) for number in range(count)]
    with connect(hbase.native) as engine:
        engine.ensure_table(data, ["d"])
        for key in keys:
            engine.commit([Mutation(key, secrets.token_bytes(1_000) * (length // 1_000))])
    uri = getattr(hbase, kind)
    with connect(uri, policy=Policy(deadline_ms=300_000, lock_ttl_ms=300_000)) as engine:
        found = engine.read(keys)
        assert {len(cell.value) for cell in found.values() if cell} == {length}
        del found
        rows = engine.scan(data)
        assert sum(len(cell.value) for row in rows for cell in row.cells.values()) == count * length
    with connect(uri, policy=Policy(deadline_ms=300_000, lock_ttl_ms=300_000)) as engine:
        engine.commit([Mutation(key, b"short") for key in keys])
        assert {cell.value for cell in engine.read(keys).values() if cell} == {b"short"}


def test_a_table_of_a_namespace_is_like_any_other(hbase: HBase, store: HBaseStore) -> None:
    """Its namespace is made with it; both gateways find it by the same name."""
    table = f"ns_{secrets.token_hex(4)}:data".encode()
    store.ensure_table(table, {b"d": Family()})
    store.ensure_table(table, {b"d": Family(), b"e": Family()})
    store.ensure_table(b"txn", {FAMILY: Family(versions=1)})  # which Thrift 1 cannot make
    with connect(hbase.thrift1, table=table, transactions="txn") as engine:
        key = Key("a", "d", "x")
        done = engine.commit([Mutation(key, b"1")])
        assert engine.read([key]) == {key: Cell(b"1", done.timestamp)}
        assert engine.context.store.describe(table.replace(b"data", b"other")) is None
    assert [row.row for row in store.scan(table)] == [b"a"]


def test_clients_that_make_a_table_at_once_all_find_it(hbase: HBase) -> None:
    """Every worker of a job ensures the transaction table when it starts."""
    table, failures = fresh("race"), []

    def make(family: bytes) -> None:
        client = open_store(hbase.thrift2)
        try:
            client.ensure_table(table, {b"d": Family(), family: Family()})
        except Exception as error:  # noqa: BLE001
            failures.append(error)
        client.close()

    threads = [threading.Thread(target=make, args=(b"f%d" % n,)) for n in (0, 0, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client = open_store(hbase.thrift2)
    assert failures == []
    assert set(client.describe(table) or ()) == {b"d", b"f0", b"f1"}
    client.close()


@pytest.mark.parametrize("kind", ["thrift1", "thrift2"])
@pytest.mark.parametrize("name", [b"", b"a b", b"a:b:c", b"-a", b"nowhere:table"])
def test_a_table_that_cannot_be_is_not_there(hbase: HBase, kind: str, name: bytes) -> None:
    """Gateways answer such names with an internal error, which helps nobody."""
    client = open_store(getattr(hbase, kind))
    assert client.describe(name) is None
    if name:
        with pytest.raises(TableUnavailable, match="no such table"):
            client.read([Key("a", "d", "x", name)])
    if b"where" not in name:
        with pytest.raises(InvalidRequestError, match="not a legal table name"):
            client.ensure_table(name, {b"d": Family()})
    client.close()


def test_thrift_1_says_how_to_make_a_table(hbase: HBase) -> None:
    """It cannot ask HBase to keep markers, so it makes nothing, and names what would."""
    client, table = open_store(hbase.thrift1), fresh("untold")
    with pytest.raises(InvalidRequestError, match=r"Thrift 2 gateway, or in the HBase shell") as e:
        client.ensure_table(table, {b"t": Family(versions=1)}, [b"01."])
    assert f"create '{table.decode()}', {{NAME => 't', VERSIONS => 1" in str(e.value)
    assert "'hbase.hstore.time.to.purge.deletes' => '90000000'" in str(e.value)
    assert "SPLITS => ['01.']" in str(e.value)
    assert client.describe(table) is None
    client.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ttl_s": 60}, "TTL.*ttl_ms=60000"),
        ({"NEW_VERSION_BEHAVIOR": True}, "NEW_VERSION_BEHAVIOR"),
        ({"durability": IDL.TDurability.ASYNC_WAL}, "ASYNC_WAL"),
    ],
)
def test_tables_that_break_the_protocol_are_refused(
    hbase: HBase, store: HBaseStore, settings: dict[str, object], reason: str
) -> None:
    """Locks that expire, markers that do not mask, decisions that are lost: and doctor finds it."""
    table = fresh("unsafe")
    make_as_hbase_does(store, table, VERSIONS=3, **settings)
    with connect(hbase.thrift2) as engine:
        with pytest.raises(InvalidRequestError, match=reason):
            engine.commit([Mutation(Key("a", "d", "x", table), b"1")])
        with pytest.raises(InvalidRequestError):
            engine.ensure_table(table, ["d"])
        found = [d for d in examine(engine.context, [table]) if d.verdict is Verdict.WRONG]
    assert len(found) == 1
    assert found[0].mend.startswith("alter ")


def test_deletes_are_refused_where_markers_are_purged_at_once(
    hbase: HBase, store: HBaseStore
) -> None:
    """HBase's default. Puts need no markers, so they are welcome."""
    table = fresh("purged")
    make_as_hbase_does(store, table)
    key = Key("a", "d", "x", table)
    with connect(hbase.thrift2) as engine:
        engine.commit([Mutation(key, b"1")])
        with pytest.raises(InvalidRequestError, match=r"purge\.deletes to 86400000"):
            engine.commit([Delete(key)])
        verdicts = [d.verdict for d in examine(engine.context, [table])]
    assert (Verdict.WRONG in verdicts, Verdict.CAUTION in verdicts) == (False, True)


@pytest.mark.parametrize("wrong", ["thrift1", "thrift2"])
def test_the_other_kind_of_gateway_is_recognized(hbase: HBase, wrong: str) -> None:
    """Both listen at 9090 by default."""
    other = {"thrift1": hbase.thrift2, "thrift2": hbase.thrift1}[wrong]
    client = open_store(f"hbase+{wrong}:{other.partition(':')[2]}")
    with pytest.raises(InvalidRequestError, match="the gateway is of the other kind"):
        client.describe(b"txn")
    with pytest.raises(MaybeApplied, match="nvalid method name"):
        client.read([Key("a", "d", "x", "txn")])
    client.close()


# --- what is sent -------------------------------------------------------------------------------


def test_a_transaction_makes_seven_calls_here_too(hbase: HBase) -> None:
    """And another one, which completes its row later."""
    data = fresh("cost")
    counting = CountingStore(open_store(hbase.thrift2))
    with Engine(counting) as engine:
        engine.ensure_table(data, ["d"])
        keys = [Key(f"r{n}", "d", "x", data) for n in range(3)]
        engine.commit([Mutation(key, b"1") for key in keys])
        engine.flush()
        counting.reset()
        engine.commit([Mutation(key, b"2") for key in keys])
        engine.flush()
        calls = {"check_and_put": 5, "check_and_read": 1, "write": 1, "atomically": 1}
        assert counting.calls == calls


def test_a_scan_takes_little_memory_whatever_rows_hold(store: HBaseStore) -> None:
    """fsck must get through a table of large buffers: the larger the rows, the fewer at a time."""
    table = fresh("large")
    store.ensure_table(table, {b"d": Family()})
    value = b"v" * 300_000
    for start in range(0, 60, 20):
        rows = range(start, start + 20)
        store.write([Edit(Key(f"{n:03}", "d", "x", table), value, 1) for n in rows])
    small = [Edit(Key(f"1{n:04}", "d", "x", table), b"v", 1) for n in range(3000)]
    store.write(small)
    found = [row.row for row in store.scan(table)]
    assert found == sorted(found)
    assert len(found) == 60 + 3000


# --- both kinds at once -------------------------------------------------------------------------


def wanted(committed: Collection[list[bool]], spent_s: float) -> bool:
    """Whether there should be more transfers."""
    enough = min(sum(each) for each in committed) >= ENOUGH
    return spent_s < (BANK_S if enough else ATTEMPTED_WITHIN_S)


def test_clients_of_both_gateways_share_accounts(hbase: HBase) -> None:
    """One protocol: no client can tell which gateway another one uses."""
    table, transactions = fresh("mixed"), fresh("mixed-txn")
    keys = [Key(f"account{number}", "d", "balance", table) for number in range(ACCOUNTS)]
    with connect(hbase.thrift2, transactions=transactions) as engine:
        engine.ensure_table(table, ["d"])
        engine.commit([Mutation(key, str(BALANCE)) for key in keys])
    policy = Policy(lock_ttl_ms=2_000, attempts=50)
    committed: dict[str, list[bool]] = {"thrift1": [], "thrift2": []}
    failures: list[BaseException] = []
    began = time.monotonic()

    def transfer(engine: Engine, rng: Random) -> bool:
        pair, amount = rng.sample(keys, 2), rng.randint(1, 9)
        try:
            cells = engine.read(keys)
            assert sum(int(cell.value) for cell in cells.values() if cell) == ACCOUNTS * BALANCE
            seen = [cell for key in pair if (cell := cells[key])]
            moved = [int(seen[0].value) - amount, int(seen[1].value) + amount]
            engine.commit(
                [Mutation(key, str(value)) for key, value in zip(pair, moved, strict=True)],
                [Version(key, cell.timestamp) for key, cell in zip(pair, seen, strict=True)],
            )
        except AbortedError:
            return False
        return True

    def client(gateway: str, seed: int) -> None:
        try:
            uri = getattr(hbase, gateway)
            with connect(uri, transactions=transactions, policy=policy) as engine:
                rng = Random(seed)
                while not failures and wanted(committed.values(), time.monotonic() - began):
                    committed[gateway].append(transfer(engine, rng))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [
        threading.Thread(target=client, args=(gateway, seed))
        for seed, gateway in enumerate(["thrift1", "thrift2"] * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(sum(each) for each in committed.values()) >= ENOUGH
    with connect(hbase.thrift1, transactions=transactions) as engine:
        assert list(check(engine.context, grace_ms=0, scan=[table])) == []
        left = summary(engine.context, [table])
        assert (left.locks, left.tags) == (0, 0)


def test_a_client_of_one_gateway_finishes_what_one_of_the_other_left(hbase: HBase) -> None:
    """A lock of a dead Thrift 1 client must not need a Thrift 1 client."""
    table, transactions = fresh("left"), fresh("left-txn")
    with connect(hbase.thrift2, table=table, transactions=transactions) as engine:
        engine.ensure_table(table, ["d"])
        key = Key("a", "d", "x", table)
        ghost = b"transaction.1700000000000." + b"0" * 32
        other = open_store(hbase.thrift1)
        assert other.check_and_put([Check(key.lock, b"", ((key.lock, ghost),))]) == [True]
        findings = list(check(engine.context, grace_ms=0, scan=[table]))
        for finding in findings:
            repair(engine.context, finding)
        assert len(findings) == 1
        engine.commit([Mutation(key, b"1")])
        assert (other.read([key])[key] or Cell(b"", 0)).value == b"1"
        other.close()


# --- ways to connect ----------------------------------------------------------------------------


def works(uri: str, table: bytes) -> bool:
    """Whether reading, writing, checking and scanning work by this URI."""
    client, key = open_store(uri), Key(uuid.uuid4().hex, "d", "x", table)
    client.write([Edit(key, b"v" * 70_000, 5)])
    checked = client.check_and_put([Check(key, b"v" * 70_000, ((key, b"2"),))])
    seen = next(client.scan(table, key.row)).cells[key]
    try:
        return checked == [True] and client.read([key]) == {key: seen} and seen.value == b"2"
    finally:
        client.close()


@pytest.mark.parametrize("kind", ["thrift1", "thrift2"])
def test_a_framed_transport_and_the_compact_protocol_work(
    hbase: HBase, store: HBaseStore, kind: str, tmp_path: Path
) -> None:
    """Non-blocking gateways are framed; a client must speak as its gateway does."""
    if hbase.cluster is None:
        pytest.skip("the HBase is not ours: no further gateway can be started on it")
    table = fresh("framed")
    store.ensure_table(table, {b"d": Family()})
    with (
        claim_ports(Settings(tmp_path), {}, SystemRandom()) as ports,
        framed_gateway(hbase.cluster.settings, kind, ports[kind]),
    ):
        wait_until_it_listens(ports[kind])
        uri = f"hbase+{kind}://127.0.0.1:{ports[kind]}?transport=framed&protocol=compact"
        assert works(uri, table)


@contextmanager
def framed_gateway(settings: Settings, kind: str, port: int) -> Iterator[None]:
    """Start a further gateway on a cluster, and kill it at the end."""
    mark = secrets.token_hex(8)
    package = "thrift" if kind == "thrift1" else kind
    arguments = ("start", "-p", str(port), "--bind", "127.0.0.1", "-f", "-c")
    role = Role(f"{kind}-framed", f"org.apache.hadoop.hbase.{package}.ThriftServer", arguments, 256)
    process = launch(
        role.name,
        make_command(role, settings, find_java_home() / "bin" / "java", mark),
        port=port,
        mark=mark,
        logs=settings.folder / "logs",
        env={"CLASSPATH": make_class_path(settings, fetch(jars=read_locked(settings.version)))},
    )
    try:
        yield
    finally:
        end([process], SystemClock(), grace_ms=0)


def wait_until_it_listens(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        SystemClock().sleep_ms(100)
    raise AssertionError("the gateway does not start")


@contextmanager
def behind_tls(port: int) -> Iterator[int]:
    """Put TLS before a gateway, as a proxy beside it does: HBase's own speaks it over HTTP only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    threads = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(client, server_side=True) as inside,
            socket.create_connection(("127.0.0.1", port)) as gateway,
        ):
            back = threading.Thread(target=copy, args=(gateway, inside))
            back.start()
            copy(inside, gateway)
            back.join()

    def listen() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threads.append(threading.Thread(target=serve, args=(client,)))
                threads[-1].start()

    listening = socket.create_server(("127.0.0.1", 0))
    threads.append(threading.Thread(target=listen))
    threads[0].start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("kind", ["thrift1", "thrift2"])
def test_a_gateway_behind_tls_is_trusted_by_its_certificate(
    hbase: HBase, store: HBaseStore, kind: str
) -> None:
    """A certificate that nobody vouches for is refused before anything is sent."""
    table = fresh("tls")
    store.ensure_table(table, {b"d": Family()})
    with behind_tls(int(getattr(hbase, kind).rpartition(":")[2])) as port:
        assert works(f"hbase+{kind}://localhost:{port}?ca={TLS / 'certificate.pem'}", table)
        stranger = open_store(f"hbase+{kind}://localhost:{port}?tls=on")
        with pytest.raises(NotApplied, match=r"cannot connect.*certificate verify failed"):
            stranger.read([Key("a", "d", "x", table)])
        stranger.close()


# --- the command --------------------------------------------------------------------------------


def test_doctor_tells_people_and_programs(
    hbase: HBase, store: HBaseStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 where something is wrong, 0 where nothing is; the cure beside it."""
    good, bad = fresh("good"), fresh("bad")
    store.ensure_table(good, {b"d": Family()})
    make_as_hbase_does(store, bad, ttl_s=60)
    connect(hbase.thrift2).close()

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            app(["doctor", "--store", hbase.thrift2, *arguments])
        return int(ended.value.code or 0), capsys.readouterr().out

    code, said = run(good.decode())
    assert (code, "wrong" in said) == (0, False)
    assert "checked writes: behave as the protocol needs" in said
    code, said = run(bad.decode(), "--json")
    (found,) = (line for line in map(json.loads, said.splitlines()) if line["verdict"] == "wrong")
    assert code == 1
    assert found["about"] == f"table {bad.decode()}, family d"
    assert found["mend"] == "alter it with TTL => 'FOREVER'"
