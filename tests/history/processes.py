"""Client processes that are killed, and the history that they leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from recovery import check, repair
from recovery.convert import take_over
from tests.chaos.client import end_with_input
from tests.history.anomalies import Kind
from tests.history.events import Ending, Transaction
from tests.history.recording import Recorder, load, to_file
from tests.history.workload import MODELS, Work, atomic, raw
from txn import Engine, Key, Policy, connect
from txn.protocol.statuses import ProtocolName

ROOT = Path(__file__).parents[2]
MODULE = "tests.history.processes"
TABLE = "history"
TRANSACTIONS = "history-txn"
POLICY = Policy(lock_ttl_ms=400, deadline_ms=60_000, attempts=20)
LOOKS = {"writer": atomic, "reader": raw}
KEYS = 6
EPOCH_NS = 500_000_000
FSCK_GRACE_MS = 1_000
FSCK_EACH = 3
READER_REST_S = 0.003
FRACTURED = {Kind.G_SINGLE, Kind.G2_ITEM, Kind.G2}


@dataclass(frozen=True, slots=True)
class Plan:
    """Who works on which ways to one store, and how many are killed."""

    folder: Path
    uris: Sequence[str]
    model: str
    kills: int
    writers: int = 4
    kill_each_s: float = 1.0
    seed: int = 0
    protocol: ProtocolName = "six-phase"

    @property
    def transactions(self) -> str:
        return f"{TRANSACTIONS}-{self.protocol}"


def open_engine(
    uri: str, transactions: str = TRANSACTIONS, protocol: ProtocolName | None = None
) -> Engine:
    return connect(uri, table=TABLE, transactions=transactions, policy=POLICY, protocol=protocol)


def judge(plans: Iterable[Plan]) -> None:
    """Carry out plans until one of their readers has met a transaction half done."""
    for plan in plans:
        (writers, readers), found = run(plan), MODELS[plan.model].check
        assert found(writers) == []
        assert any(t.writes() and t.ending is Ending.COMMITTED for t in writers)
        kinds = {anomaly.kind for anomaly in found([*writers, *readers])}
        assert kinds <= FRACTURED | {Kind.REAL_TIME}
        if kinds & FRACTURED:
            return
    raise AssertionError("nobody has seen a transaction half done")


def run(plan: Plan) -> tuple[list[Transaction], list[Transaction]]:
    rng = Random(plan.seed)
    started_ns = time.monotonic_ns()
    with open_engine(plan.uris[0], plan.transactions, plan.protocol) as engine:
        if engine.context.store.describe(TABLE.encode()):  # perhaps of another database
            take_over(engine.context, TABLE.encode())
        engine.ensure_table(TABLE, ["d"])
        with ExitStack() as stack:  # whatever happens, no client is left
            crew = _Crew(plan, stack)
            crew.wait_until_all_work()
            for number in range(plan.kills):
                time.sleep(rng.uniform(0, 2 * plan.kill_each_s))
                crew.replace(rng.randrange(plan.writers))
                if number % FSCK_EACH == 0:
                    _mend(engine, FSCK_GRACE_MS)
            crew.wait_until_all_work()
            crew.end()
        _mend(engine, 0)
        _read_all(engine, plan, range(started_ns // EPOCH_NS, time.monotonic_ns() // EPOCH_NS + 1))
    return load(plan.folder / "writer"), load(plan.folder / "reader")


def _mend(engine: Engine, grace_ms: int) -> None:
    for finding in check(engine.context, grace_ms=grace_ms):
        repair(engine.context, finding)


def _read_all(engine: Engine, plan: Plan, epochs: range) -> None:
    recorder = Recorder(to_file(plan.folder / "writer" / "end.jsonl"))
    work = Work(MODELS[plan.model], [], Random(0), recorder, "end")
    for epoch in epochs:
        assert work.look(engine, keys(epoch, plan.seed)) is not None


def keys(epoch: int, seed: int) -> list[Key]:
    return [Key(f"{seed}-{epoch}-{i // 2}", "d", f"v{i}", TABLE) for i in range(KEYS)]


class _Client(NamedTuple):
    process: subprocess.Popen[bytes]
    history: Path
    errors: Path

    def kill(self) -> None:
        """Kill the process, which must not have ended by itself."""
        self.process.kill()
        code = self.process.wait()
        assert code == -signal.SIGKILL, f"it ended with {code}: {self.errors.read_text()}"


class _Crew:
    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._started = 0
        for role in LOOKS:
            (plan.folder / role).mkdir(parents=True)
        self._running = [self._start("writer", place) for place in range(plan.writers)]
        self._running.append(self._start("reader", plan.writers))

    def replace(self, place: int) -> None:
        self._running[place].kill()
        self._running[place] = self._start("writer", place)

    def wait_until_all_work(self) -> None:
        deadline = time.monotonic() + 300
        while not all(c.history.exists() and c.history.stat().st_size for c in self._running):
            assert time.monotonic() < deadline, "somebody does not get to work"
            time.sleep(0.05)

    def end(self) -> None:
        for client in self._running:
            client.kill()

    def _start(self, role: str, place: int) -> _Client:
        self._started += 1
        plan, name = self._plan, f"{role[0]}{self._started}"
        uri = plan.uris[place % len(plan.uris)]
        place_of = (str(plan.folder / role), uri, plan.transactions)
        arguments = (role, plan.model, name, str(plan.seed), *place_of)
        errors = plan.folder / role / f"{name}.err"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", MODULE, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=stderr,
            )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return _Client(process, errors.with_suffix(".jsonl"), errors)


def main() -> None:
    role, model, name, seed, folder, uri, transactions = sys.argv[1:]
    threading.Thread(target=end_with_input, daemon=True).start()
    recorder = Recorder(to_file(Path(folder) / f"{name}.jsonl"))
    rng = Random(f"{seed}/{name}")
    work = Work(MODELS[model], [], rng, recorder, name, LOOKS[role])
    with open_engine(uri, transactions) as engine:
        while True:
            work.keys = keys(time.monotonic_ns() // EPOCH_NS, int(seed))
            if role == "reader":
                time.sleep(READER_REST_S)
                work.look(engine)
            elif rng.random() < 0.3:
                looks: list[Callable[[Engine], object]] = [work.look, work.scan]
                rng.choice(looks)(engine)
            else:
                write = rng.choice([work.write, work.block])
                write(engine, rng.choice(["complete", "decided"]))


if __name__ == "__main__":
    main()
