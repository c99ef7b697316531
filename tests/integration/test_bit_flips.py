"""Damage in a store's data file is an error of ours, or the end of the process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import lmdb
import pytest

from recovery import check, repair, summary
from recovery.scan import transactions
from txn import Delete, Engine, Key, Mutation, Policy, connect
from txn.clock import ManualClock
from txn.errors import TxnError
from txn.model import Edit
from txn.protocol.statuses import ProtocolName
from txn.stores import open_store
from txn.stores.base import Store

LIMIT_S = 20
ENDED = {"SIGABRT", "SIGBUS", "SIGSEGV"}
PAGE, PAGE_HEAD = 4096, 64
HURRIED = Policy(store_patience_ms=1, deadline_ms=500, lock_ttl_ms=100)
LONG = b"long" * 200
KEYS = [Key(b"%03d" % row, b"d", column, b"stock") for row in range(60) for column in (b"a", b"b")]
LONG_KEYS = [Key(LONG + b"%d" % row, b"d", b"a", b"stock") for row in range(5)]
LARGE = Key(b"large", b"d", b"a", b"stock")


def make_store(path: str, protocol: ProtocolName) -> None:
    """Fill a store with what a data file can have; without free pages, most flips matter."""
    clock, whole = ManualClock(), f"{path}-whole"
    store = open_store(f"embedded://{whole}?sync=off", clock)
    with Engine(store, clock=clock, rng=random.Random(1), protocol=protocol) as engine:
        engine.ensure_table("stock", ["d", "e"])
        for value in range(3):
            engine.commit([Mutation(key, b"%d" % value * 20) for key in [*KEYS, *LONG_KEYS]])
        engine.commit(
            [Mutation(LARGE, bytes(20_000))], once="token", once_content="", labels={"job": "7"}
        )
        engine.commit([Delete(key) for key in KEYS[:10]])
        engine.commit([Mutation(Key(b"001", b"e", b"a", b"stock"), b"1")])
        store.write([Edit(KEYS[50], b"1", 5), Edit(KEYS[51], None, 5)])
    os.mkdir(path)
    with lmdb.Environment(whole, create=False, lib_version=0) as environment:
        environment.copy(path, compact=True)
    shutil.copy(f"{whole}/format", path)


def list_scans(store: Store, name: bytes) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "scan", lambda: list(store.scan(name))
    yield "reverse", lambda: list(store.scan(name, reverse=True))
    yield "splits", lambda: store.find_splits(name, 4)


def list_calls(engine: Engine) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls of every kind, by name."""
    context = engine.context
    keys = [*KEYS, *LONG_KEYS, LARGE]
    yield "read", lambda: engine.read(keys)
    yield "versions", lambda: context.store.read_versions(keys, 3)
    for name in (b"stock", b"txn"):
        yield from list_scans(context.store, name)
    yield "tables", lambda: [context.store.list_tables(), context.store.describe(b"stock")]
    yield "ls", lambda: list(transactions(context))
    yield "summary", lambda: summary(context, [b"stock"])
    yield "commit", lambda: engine.commit([Mutation(key, b"new") for key in KEYS[::7]])
    yield "token", lambda: engine.commit([Mutation(KEYS[0], b"1")], once="token", once_content="")
    yield "delete", lambda: engine.commit([Delete(key) for key in [*KEYS[1::7], *LONG_KEYS[:2]]])
    yield "put", lambda: context.store.write([Edit(KEYS[2], b"1", 5), Edit(KEYS[3], None, 6)])
    yield "compact", lambda: context.store.compact(b"stock", 1 << 62)

    def mend() -> None:
        for finding in check(context, grace_ms=0, retention_ms=0, scan=[b"stock"]):
            repair(context, finding)

    yield "fsck", mend
    yield "ensure", lambda: engine.ensure_table("more", ["d"])


def use_store(path: str) -> Counter[str]:
    """Return how the calls ended: as they should, with an error of ours, or with another one."""
    ends: Counter[str] = Counter()

    def attempt(name: str, call: Callable[[], object]) -> object:
        found = None
        try:
            found = call()
            ends["as without damage"] += 1
        except TxnError as error:
            ends[type(error).__name__] += 1
        except Exception as error:  # noqa: BLE001
            ends[f"raw: {type(error).__name__} of {name}"] += 1
        return found

    engine = attempt("open", lambda: connect(f"embedded://{path}?sync=off", policy=HURRIED))
    if isinstance(engine, Engine):
        for name, call in list_calls(engine):
            attempt(name, call)
        attempt("close", engine.close)
    return ends


def choose_bits(path: str, count: int, rng: random.Random) -> Iterator[int]:
    """Yield positions in the data file; half of them in the heads of pages."""
    size = Path(path, "data.mdb").stat().st_size
    for number in range(count):
        at = rng.randrange(size)
        if number % 2:
            at += rng.randrange(PAGE_HEAD) - at % PAGE
        yield 8 * at + rng.randrange(8)


def flip_bits(path: str, positions: Iterable[int]) -> Iterator[tuple[int, Counter[str]]]:
    """Flip each bit in a copy of a store, for a process of its own; yield it and what followed."""
    data = Path(path, "data.mdb").read_bytes()
    for position in positions:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{path}/format", folder)
            Path(folder, "data.mdb").write_bytes(damaged)
            yield position, _use_in_child(folder)


def _use_in_child(path: str) -> Counter[str]:
    heard, told = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(heard)
        signal.alarm(LIMIT_S)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # LMDB's assertions
        ends = use_store(path)
        os.write(told, "\n".join(ends.elements()).encode())
        os._exit(0)
    os.close(told)
    with os.fdopen(heard) as pipe:
        ends = Counter(pipe.read().split("\n"))
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return Counter([signal.Signals(os.WTERMSIG(status)).name])
    return ends


def require_our_errors(path: str, positions: Iterable[int]) -> None:
    for position, ends in flip_bits(path, positions):
        strange = [end for end in ends if end.startswith(("raw", "SIG")) and end not in ENDED]
        assert not strange, (position, strange)


@pytest.mark.parametrize(
    ("protocol", "positions"), [("six-phase", (754_160, 1_177_901)), ("fenced", (765_236,))]
)
def test_a_flipped_bit_is_an_error_of_ours(
    tmp_path: Path, protocol: ProtocolName, positions: tuple[int, ...]
) -> None:
    """And a scan ends although a key in an inner page leads it back."""
    make_store(str(tmp_path / "store"), protocol)
    require_our_errors(str(tmp_path / "store"), positions)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["six-phase", "fenced"])
def test_any_flipped_bit_is_an_error_of_ours(tmp_path: Path, protocol: ProtocolName) -> None:
    path = str(tmp_path / "store")
    make_store(path, protocol)
    require_our_errors(path, choose_bits(path, 500, random.Random(3)))
