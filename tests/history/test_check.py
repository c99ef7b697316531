"""The checker is checked: hand-made histories, one for each anomaly, and good ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.history.anomalies import Anomaly, Kind
from tests.history.check import check_lists, check_registers
from tests.history.events import Deletion, Ending, Missing, Read, Transaction, Write

pytestmark = pytest.mark.fast

History = list[Transaction]


def t(
    name: str,
    *events: Read | Write,
    at: tuple[int, int | None] = (0, 100),
    ending: Ending = Ending.COMMITTED,
) -> Transaction:
    return Transaction(name, events, *at, ending)


def tell(*texts: str) -> History:
    """`name@start-end x+1 y= x=12 z-`: append 1 to x, read y and x, scan past z; ! aborted, ?
    unknown."""
    return [_tell(*text.split()) for text in texts]


def _tell(name: str, *events: str) -> Transaction:
    name, _, time = name.partition("@")
    start, _, end = time.rstrip("?").partition("-")
    at = (int(start), int(end) if end else None) if time else (0, 100)
    ending = Ending.UNKNOWN if "?" in time else Ending.ABORTED if "!" in name else Ending.COMMITTED
    return t(name, *map(_tell_event, events), at=at, ending=ending)


def _tell_event(text: str) -> Read | Write:
    key, kind, numbers = text[0], text[1], tuple(map(int, text[2:]))
    if kind == "+":
        return Write(key, numbers[0])
    return (Missing if kind == "-" else Read)(key, numbers)


def kinds(found: Sequence[Anomaly]) -> list[Kind]:
    return [anomaly.kind for anomaly in found]


def one(found: Sequence[Anomaly]) -> Anomaly:
    (anomaly,) = found
    return anomaly


def put_and_deleted(*others: Transaction) -> History:
    """Registers: a puts x and b deletes it, one after the other; and others."""
    return [
        t("a", Write("x", "a", at=5), at=(0, 10)),
        t("b", Read("x", "a", at=5), Deletion("x", "b", at=6), at=(20, 30)),
        *others,
    ]


def unknown(*events: Read | Write, start: int = 0, end: int | None = None) -> Transaction:
    return t(f"u{start}", *events, at=(start, end), ending=Ending.UNKNOWN)


def aborted(*events: Read | Write) -> Transaction:
    return t("gone", *events, ending=Ending.ABORTED)


LISTS = {
    "one after the other": ["a@0-1 x= x+1", "b@2-3 x=1 x+2 y+1", "c@4-5 x=12 y=1"],
    "in any order at the same time": ["a@0-10 x+1", "b@9-20 x=", "c@1-9 x=1"],
    "aborted and not seen": ["gone! x=7 x+1", "a x="],
    "unknown and not seen": ["u@0-? x+1", "a@50-60 x="],
    "unknown and seen": ["u@0-? x+1", "a@50-60 x=1"],
    "unknown and late": ["u@0-5? x+1", "a@10-20 x=", "b@30-40 x=1"],
    "own writes": ["a x+1 x=1 x+2 x=12"],
}
REGISTERS: dict[str, History] = {
    "own writes": [t("a", Write("x", 1), Read("x", 1), Write("x", 2), Read("x", 2))],
    "own deletions": [t("a", Write("x", "a"), Read("x", "a"), Deletion("x", "d"), Read("x", None))],
    "ordered by timestamps": [
        t("a", Write("x", "a", at=5), at=(0, 9)),
        t("b", Write("x", "b", at=4), at=(0, 9)),
        t("c", Read("x", "a", at=5), at=(10, 11)),
    ],
    "a deletion that perhaps never happened": [
        unknown(Deletion("y", "u")),
        t("a", Write("y", "a", at=5), at=(0, 5)),
        t("b", Read("y", None), at=(6, 9)),
    ],
    **{
        f"nothing, before a put or after a deletion, {at}": put_and_deleted(
            t("c", Read("x", None), at=at)
        )
        for at in ((0, 9), (9, 21), (21, 40), (31, 40))
    },
}


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_wrong_with_lists(name: str) -> None:
    assert check_lists(tell(*LISTS[name])) == []


@pytest.mark.parametrize("name", REGISTERS)
def test_nothing_is_wrong_with_registers(name: str) -> None:
    assert check_registers(REGISTERS[name]) == []


WRONG_LISTS = {
    "two keys in opposite orders": (Kind.G0, "ww", ["a x+1 y+1", "b x+2 y+2", "c x=12", "d y=21"]),
    "an aborted element was read": (Kind.G1A, "", ["gone! x+1", "a x=1"]),
    "an aborted element is below later ones": (Kind.G1A, "", ["gone! x+1", "a x+2", "b x=12"]),
    "each read what the other wrote": (Kind.G1C, "wr", ["a x+1 y=1", "b y+1 x=1"]),
    "two replaced a version": (Kind.LOST_UPDATE, "ww rw", ["a x= x+1", "b x= x+2", "c x=2"]),
    "half of a transaction was read": (Kind.G_SINGLE, "rw wr", ["w x+1 y+1", "r x=1 y="]),
    "a read was not repeatable": (Kind.G_SINGLE, "rw wr", ["w x+1", "r x= x=1"]),
    "a phantom came between two scans": (Kind.G_SINGLE, "prw wr", ["w x+1", "r x- x=1"]),
    "half of an unknown one": (Kind.G_SINGLE, "rw wr", ["u@0-? x+1 y+1", "r@10-20 x=1 y="]),
    "half of an unknown one that another has read": (
        Kind.G_SINGLE,
        "rw wr",
        ["u@0-? x+1 z+1", "v@1-? x=1 y+1", "r@10-20 y=1 z="],
    ),
    "write skew": (Kind.G2_ITEM, "rw", ["a x= y+1", "b y= x+1", "c x=1 y=1"]),
    "a long fork": (Kind.G2_ITEM, "rw wr", ["a x+1", "b y+1", "c x=1 y=", "d x= y=1"]),
    "write skew of ranges": (Kind.G2, "prw", ["a x- y+1", "b y- x+1", "c x=1 y=1"]),
    "a scan missed what was there": (Kind.REAL_TIME, "rt prw", ["a@0-10 x+1", "b@11-20 x-"]),
    "a stale read": (Kind.REAL_TIME, "rt rw", ["a@0-10 x+1", "b@11-20 x="]),
    "a lost commit": (Kind.REAL_TIME, "rt ww", ["a@0-10 x+1", "b@11-20 x+2", "c@21-30 x=2"]),
    "nobody wrote it": (Kind.GARBAGE_READ, "", ["a x=7"]),
    "an element is there twice": (Kind.DUPLICATE, "", ["w x+1", "a x=11"]),
    "own writes are not seen": (Kind.INTERNAL, "", ["a x+1 x="]),
}
WRONG_REGISTERS: dict[str, tuple[Kind, History]] = {
    "two wrote two keys in opposite orders": (
        Kind.G0,
        [
            t("a", Write("x", "a", at=1), Write("y", "a", at=4)),
            t("b", Write("x", "b", at=2), Write("y", "b", at=3)),
        ],
    ),
    "an aborted value was read": (Kind.G1A, [aborted(Write("x", 1)), t("a", Read("x", 1))]),
    "each read what the other wrote": (
        Kind.G1C,
        [t("a", Write("x", 1), Read("y", 1)), t("b", Write("y", 1), Read("x", 1))],
    ),
    **{
        f"two replaced the same version, {times}": (
            Kind.LOST_UPDATE,
            [
                t(f"t{n}", Read("x", None), Write("x", n, at=at), at=(0, 9))
                for n, at in enumerate(times)
            ],
        )
        for times in ((1, 2), (None, None))
    },
    "a deletion was missed": (
        Kind.REAL_TIME,
        put_and_deleted(t("c", Read("x", "a", at=5), at=(31, 40))),
    ),
    "nothing was seen where something was": (
        Kind.REAL_TIME,
        put_and_deleted(t("c", Missing("x", None), at=(11, 19))),
    ),
    "a deletion was seen and its fellow was not": (
        Kind.G_SINGLE,
        [
            t("a", Write("x", "a", at=5), at=(0, 10)),
            t("b", Deletion("x", "b", at=6), Write("y", "b", at=6), at=(20, 30)),
            t("c", Read("x", None), Read("y", None), at=(15, 40)),
        ],
    ),
    "nobody wrote it": (Kind.GARBAGE_READ, [t("a", Read("x", 7))]),
    "own writes are not seen": (Kind.INTERNAL, [t("a", Write("x", 1), Read("x", None))]),
}


@pytest.mark.parametrize("name", WRONG_LISTS)
def test_what_is_wrong_with_lists_is_seen(name: str) -> None:
    kind, edges, history = WRONG_LISTS[name]
    found = one(check_lists(tell(*history)))
    assert found.kind is kind
    assert {step.edge.value for step in found.cycle} == set(edges.split())


@pytest.mark.parametrize("name", WRONG_REGISTERS)
def test_what_is_wrong_with_registers_is_seen(name: str) -> None:
    kind, history = WRONG_REGISTERS[name]
    assert kinds(check_registers(history)) == [kind]


def test_what_its_writer_went_on_to_replace_is_seen() -> None:
    writer = t("w", Write("x", 1), Write("x", 2))
    assert Kind.G1B in kinds(check_lists([writer, *tell("a x=1")]))
    assert Kind.G1B in kinds(check_registers([writer, t("a", Read("x", 1))]))


def test_lists_that_no_order_explains_are_seen() -> None:
    history = tell("a x+1", "b x+2", "c x=12", "d x=21")
    assert Kind.INCOMPATIBLE_ORDER in kinds(check_lists(history))


def test_each_group_of_transactions_is_told_once_and_as_its_worst() -> None:
    """A write cycle makes read cycles as well; those add nothing."""
    skewed = tell("a x= y+1", "b y= x+1")
    crossed = tell("c p+1 q+1", "d p+2 q+2", "e p=12 q=2", "f q=21")
    found = kinds(check_lists([*skewed, *crossed]))
    assert set(found) == {Kind.G2_ITEM, Kind.G0}
    assert len(found) == 2
