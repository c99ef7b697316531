"""The transactions that are broken in every way. `before` is what a first one has stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tests.simulation.world import key
from txn import Delete, Exact, GreaterThan, Key, Mutation, Not, Or, Some
from txn.assertions import Assertion
from txn.protocol.statuses import ProtocolName

A, B = key("row-1", "a"), key("row-1", "b")
C, E = key("row-2", "c"), key("row-3", "e")


@dataclass(frozen=True, slots=True)
class Shape:
    """A transaction, in a database of a protocol. holds: whether its assertions are true."""

    name: str
    mutations: tuple[Mutation | Delete, ...]
    assertions: tuple[Assertion, ...] = ()
    holds: bool = True
    once: str | None = None
    protocol: ProtocolName = "six-phase"
    in_parts: bool = False
    validate: bool = False
    in_region: bool = False

    def __str__(self) -> str:
        name = f"{self.name}, in parts" if self.in_parts else self.name
        name += ", in a region" * self.in_region
        return name if self.protocol == "six-phase" else f"{self.protocol}, {name}"

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(mutation.key for mutation in self.mutations)

    @property
    def is_alone(self) -> bool:
        return len({key.row for key in self.keys}) == 1 and not self.once and not self.validate

    @property
    def before(self) -> Mapping[Key, bytes | None]:
        return {key: BEFORE.get(key) for key in self.keys}

    @property
    def after(self) -> Mapping[Key, bytes | None]:
        return after(self.mutations)


def after(mutations: Iterable[Mutation | Delete]) -> dict[Key, bytes | None]:
    return {m.key: m.value if isinstance(m, Mutation) else None for m in mutations}


BEFORE: Mapping[Key, bytes] = {A: b"a0", B: b"b0", C: b"c0"}
PUTS = {k: Mutation(k, k.column + b"1") for k in (A, B, C, E)}

SHAPES = (
    Shape("one put", (PUTS[A],)),
    Shape("one delete", (Delete(A),)),
    Shape("a new key and an assertion on it", (PUTS[E],), (Not(Some(E)),)),
    Shape("put and delete in one row", (PUTS[A], Delete(B))),
    Shape("two rows, asserted", (PUTS[A], PUTS[C]), (Exact(A, "a0"), GreaterThan(C, "b"))),
    Shape("two rows, assertion on a third key", (Delete(A), PUTS[C]), (Some(B),)),
    Shape("three rows", (PUTS[B], Delete(C), PUTS[E]), (Exact(C, "c0"),)),
    Shape("four keys in three rows", (PUTS[A], Delete(B), PUTS[C], PUTS[E]), (Not(Some(E)),)),
    Shape("false assertion", (PUTS[A], Delete(C)), (Exact(B, "other"),), holds=False),
    Shape(
        "false assertion, four keys",
        (Delete(A), PUTS[B], PUTS[C]),
        (Or(Some(E), Exact(A, "z")),),
        holds=False,
    ),
    Shape("assertions alone", (), (Some(A), Not(Some(E)))),
    Shape("once", (PUTS[A], Delete(C)), once="token"),
    Shape("two rows validated", (PUTS[A], PUTS[E]), (Some(B), Exact(C, "c0")), validate=True),
)
FENCED = tuple(replace(shape, protocol="fenced") for shape in SHAPES)
REGIONAL = tuple(replace(shape, in_region=True) for shape in FENCED if not shape.once)
PARTED = tuple(
    replace(shape, in_parts=True)
    for shape in (*SHAPES, *FENCED)
    if shape.name in ("put and delete in one row", "two rows, asserted", "false assertion", "once")
)
BY_NAME = {str(shape): shape for shape in (*SHAPES, *FENCED, *PARTED)}
