"""One run: a cluster, its bank, the clients and the faults, and the verdict at the end.

Whatever happens, nothing is left running: clients end with their input, servers with the guard's.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.bank import ACCOUNTS, found_bank, open_bank
from tests.chaos.crew import PARTS_WRITER, WAYS, WRITERS, Crew, place_of, places
from tests.chaos.faults import ClientFaults, Inflicted, ServerFaults
from tests.chaos.guard import guarded
from tests.chaos.history import History, Log, Tail, now_ns
from tests.chaos.search import resolve
from tests.chaos.verdict import Ending, judge, leave_out_stale
from txn.cluster.cluster import Cluster, start
from txn.cluster.settings import Settings
from txn.protocol.statuses import ProtocolName

LOOK_EACH_S = 0.2
RECOVERED_WITHIN_S = 600
AT_MOST_S = 240  # beyond the time asked for, until each kind of victim had its turn
PROPERTIES = {"hbase.balancer.period": "20000"}
JAVA = ("-XX:TieredStopAtLevel=1",)  # what was killed is back sooner; peak speed is not asked for


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how many, and where. The seed decides on the faults and on what clients do. A
    fenced database is not used through Thrift 1, which cannot do it."""

    folder: Path
    seconds: float
    writers: int = 8
    seed: int = 0
    client_fault_each_s: float = 3.0
    memory_mb: int = 400
    gateway_memory_mb: int = 256
    protocol: ProtocolName = "six-phase"

    @property
    def ways(self) -> tuple[str, ...]:
        """Those that the clients use."""
        return WAYS if self.protocol == "six-phase" else WAYS[:2]


@dataclass(slots=True)
class Tally:
    """What is known while it runs. commits: the ends of committed transfers, by place. hurt: how
    often clients were, by what and role; hurt_ns: when that began. read_ns: when the last read of
    all accounts ended."""

    places: dict[str, tuple[str, str]]
    hurt_ns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    hurt: Counter[str] = field(default_factory=Counter)
    commits: dict[str, list[int]] = field(default_factory=dict)
    read_ns: int = 0
    doing: str = ""

    def late(self, since_ns: int) -> list[str]:
        """The writers that have not committed anything since then, and "readers" where none of
        these has read all accounts."""
        committing = (*WRITERS, PARTS_WRITER)
        writers = [place for place, (role, _) in self.places.items() if role in committing]
        late = [name for name in writers if self.commits.get(name, [0])[-1] <= since_ns]
        return late if self.read_ns > since_ns else [*late, "readers"]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run. violations: what must not have happened, in sentences. unjudged: how many
    reads were left out."""

    plan: Plan
    history: History
    tally: Tally
    inflicted: list[Inflicted]
    fallen: list[str]
    ending: Ending
    violations: list[str]
    unjudged: int


Shown = Callable[[Tally], None]


def run(plan: Plan, shown: Shown = lambda tally: None) -> Result:
    """Run to the end and judge. `shown` is told of the tally several times a second."""
    tally = Tally(places(plan.writers, plan.ways, plan.seed))
    settings = Settings(
        plan.folder / "hbase",
        distributed=True,
        region_servers=2,
        memory_mb=plan.memory_mb,
        gateway_memory_mb=plan.gateway_memory_mb,
        properties=PROPERTIES,
        java_options=JAVA,
    )
    with guarded(settings.folder):

        def said(step: str) -> None:
            tally.doing = step
            shown(tally)

        cluster = start(settings, on_step=said)
        return _Run(plan, cluster, tally, shown).result()


class _Run:
    def __init__(self, plan: Plan, cluster: Cluster, tally: Tally, shown: Shown) -> None:
        self._plan, self._cluster, self._tally, self._shown = plan, cluster, tally, shown
        self._rng = Random(plan.seed)
        histories = self._histories = plan.folder / "history"
        histories.mkdir(parents=True, exist_ok=True)
        self._history, self._tail = History(), Tail(histories)
        self._crew = Crew(tally.places, cluster.uris, histories, plan.seed)
        self._servers = ServerFaults(
            cluster, Random(f"{plan.seed}/servers"), Log(histories / "faults.jsonl")
        )
        self._violations: list[str] = []

    def result(self) -> Result:
        """Do all of it."""
        self._say("founding the bank")
        with open_bank(self._cluster.uris["native"], self._plan.protocol) as engine:
            found_bank(engine)
        try:
            self._crew.start_all()
            self._until_all_succeed("getting to work")
            self._hurt()
            self._until_all_succeed("recovering")
        finally:
            self._crew.end()
            self._servers.stop()
        self._look()
        gateways = [place for place, (_, way) in self._tally.places.items() if way != "native"]
        stale = leave_out_stale(self._history, gateways)
        self._say("ending with fsck")
        ending, left = resolve(self._cluster.uris, self._history)
        self._violations += [*self._crew.crashes, *left, *judge(self._history, ending)]
        resolved = Log(self._histories / "resolved.jsonl")
        for each in self._history.transfers():
            if each.outcome == "unknown":
                resolved.write(each.name, resolved=each.resolved, timestamp=each.timestamp)
        return Result(
            self._plan,
            self._history,
            self._tally,
            self._servers.inflicted,
            self._servers.fallen,
            ending,
            self._violations,
            len(stale),
        )

    def _hurt(self) -> None:
        """Hurt clients and servers for as long as asked for, and until each kind was."""
        began_s = time.monotonic()
        self._tally.hurt_ns = now_ns()
        clients = ClientFaults(self._crew, self._rng, self._plan.client_fault_each_s)
        self._servers.start()
        while self._servers.is_running:
            self._step(self._servers.now or "letting them work")
            clients.step(time.monotonic())
            spent_s = time.monotonic() - began_s
            if spent_s > self._plan.seconds and (
                self._all_hurt() or spent_s > self._plan.seconds + AT_MOST_S
            ):
                break
        clients.stop()
        self._tally.hurt = clients.hurt
        self._say("letting the last fault end")
        self._servers.stop()
        if self._servers.failure is not None:
            self._violations.append(f"a server does not come back: {self._servers.failure}")

    def _all_hurt(self) -> bool:
        faults = [each.fault for each in self._servers.inflicted]
        hurt = {(fault.kind, name[:6]) for fault in faults for name in fault.victims}
        kinds = {("kill", "thrift"), ("kill", "region"), ("move", "region"), ("split", "region")}
        return kinds <= hurt

    def _until_all_succeed(self, doing: str) -> None:
        """Let everybody work, unhurt, until each writer has committed something, and a reader has
        read all accounts."""
        since_ns, until_s = now_ns(), time.monotonic() + RECOVERED_WITHIN_S
        while late := self._tally.late(since_ns):
            self._step(doing)
            if time.monotonic() > until_s:
                self._violations.append(f"{doing}: no success of {late} in {RECOVERED_WITHIN_S} s")
                return

    def _step(self, doing: str) -> None:
        self._say(doing)
        time.sleep(LOOK_EACH_S)
        self._crew.replace_fallen()
        self._look()

    def _say(self, doing: str) -> None:
        self._tally.doing = doing
        self._shown(self._tally)

    def _look(self) -> None:
        """Read what clients have written since the last look."""
        tally = self._tally
        for line in self._tail.lines():
            operation = self._history.add(line)
            if operation is None:
                tally.outcomes[line["kind"]] += 1
            elif operation.kind == "read":
                tally.outcomes["read"] += 1
                if len(operation.reads) == len(ACCOUNTS):
                    tally.read_ns = line["end_ns"]
            elif "outcome" in line:
                tally.outcomes[operation.outcome] += 1
                if operation.outcome == "committed":
                    place = place_of(operation.name)
                    tally.commits.setdefault(place, []).append(line["end_ns"])
