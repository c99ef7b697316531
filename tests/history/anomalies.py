"""The anomalies by their names, after Adya's thesis and Elle, and how they are told to people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, assert_never

from tests.history.events import Transaction, Value


class Kind(Enum):
    """What is wrong. Cycles are named by the weakest level that forbids them."""

    GARBAGE_READ = "garbage read"
    DUPLICATE = "duplicate element"
    INTERNAL = "internal inconsistency"
    INCOMPATIBLE_ORDER = "incompatible order"
    G1A = "G1a"
    G1B = "G1b"
    LOST_UPDATE = "lost update"
    G0 = "G0"
    G1C = "G1c"
    G_SINGLE = "G-single"
    G2_ITEM = "G2-item"
    G2 = "G2"
    REAL_TIME = "real-time violation"


class Edge(Enum):
    """Why one transaction comes before another."""

    WW = "ww"
    WR = "wr"
    RW = "rw"
    PRW = "prw"
    RT = "rt"


class Dependency(NamedTuple):
    """`before` comes before `after`, as the versions earlier and later of the key show."""

    before: Transaction
    after: Transaction
    edge: Edge
    key: str = ""
    earlier: Value = None
    later: Value = None

    def __str__(self) -> str:
        one, two, key = self.before.name, self.after.name, self.key
        match self.edge:
            case Edge.WW:
                text = f"{one} wrote {self.earlier!r} to {key}, {two} wrote {self.later!r} later"
            case Edge.WR:
                text = f"{two} read {self.earlier!r} from {key}, which {one} had written"
            case Edge.RW:
                seen = "nothing" if self.earlier is None else repr(self.earlier)
                text = f"{one} read {seen} from {key}, not yet {self.later!r}, which {two} wrote"
            case Edge.PRW:
                text = f"{one} scanned, and did not find {key}, which {two} set to {self.later!r}"
            case Edge.RT:
                text = f"{one} had ended before {two} began"
            case _:
                assert_never(self.edge)
        return f"{self.edge.value}: {text}"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong: a fact in words, or a cycle."""

    kind: Kind
    fact: str = ""
    cycle: tuple[Dependency, ...] = ()

    @property
    def names(self) -> list[str]:
        return [step.before.name for step in self.cycle]

    def __str__(self) -> str:
        if not self.cycle:
            return f"{self.kind.value}: {self.fact}"
        order = " < ".join([*self.names, self.names[0]])
        return "\n".join([f"{self.kind.value}: {order}", *(f"  {step}" for step in self.cycle)])
