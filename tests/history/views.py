"""What each transaction saw of the others, and the order of versions that follows: only what must
be so. Who reads nothing has read the first state or some deletion: it counts where only one of them
was there while it read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tests.history.anomalies import Anomaly, Kind
from tests.history.events import Deletion, Ending, Missing, Read, Transaction, Value, Write

Version = tuple[str, Value]  # key and value


class View(NamedTuple):
    """A read that is not of the reader's own writes. versions: what was seen of the key, oldest
    first; the last one is current, and none means that the key was in its first state.
    is_missing: whether a scan has found nothing."""

    reader: Transaction
    key: str
    versions: tuple[Value, ...]
    is_missing: bool = False


class Succession(NamedTuple):
    """The later version comes after the earlier one; None is the first state."""

    key: str
    earlier: Value
    later: Value


@dataclass(slots=True)
class Account:
    """What is known of a history; anomalies: seen on the way."""

    happened: list[Transaction]
    writers: dict[Version, Transaction]
    views: list[View]
    successions: list[Succession] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)


Observation = Callable[[Transaction], Iterator[View | Anomaly]]


def account_of_lists(history: Sequence[Transaction]) -> Account:
    account = _account(history, _views_of_lists)
    longest: dict[str, tuple[Value, ...]] = {}
    for view in account.views:
        if len(view.versions) > len(longest.get(view.key, ())):
            longest[view.key] = view.versions
    account.views = [view for view in account.views if _fits(view, longest, account.anomalies)]
    loose: dict[str, list[Value]] = defaultdict(list)
    seen = {(key, value) for key, values in longest.items() for value in values}
    for key, value in account.writers:
        if (key, value) not in seen:
            loose[key].append(value)
    for key in {*longest, *loose}:
        order = [None, *(v for v in longest.get(key, ()) if (key, v) in account.writers)]
        account.successions += (Succession(key, *pair) for pair in pairwise(order))
        account.successions += (Succession(key, order[-1], value) for value in loose[key])
    return account


def account_of_registers(history: Sequence[Transaction]) -> Account:
    account = _account(with_absences_named(history), _views_of_registers)
    at = _timestamps(account.happened)
    order: dict[str, list[Value]] = defaultdict(lambda: [None])
    for key, value in sorted((v for v in account.writers if v in at), key=lambda v: at[v]):
        order[key].append(value)
    for key, values in order.items():
        account.successions += (Succession(key, *pair) for pair in pairwise(values))
    for t in account.happened:
        account.successions += (s for s in _replaced(t) if (s.key, s.later) not in at)
    return account


def _account(history: Sequence[Transaction], look: Observation) -> Account:
    writers = {(w.key, w.value): t for t in history for w in t.writes()}
    assert len(writers) == sum(len(t.writes()) for t in history), "a version has two writers"
    happened, views, anomalies = _happened(history, writers, look)
    for view in views:
        anomalies += _wrong_sources(view, writers)
    real = {version: t for version, t in writers.items() if t in happened}
    told = [(view, view._replace(versions=_known(view, real))) for view in views]
    known = [known for view, known in told if known.versions or not view.versions]
    return Account([t for t in history if t in happened], real, known, [], anomalies)


def _happened(
    history: Iterable[Transaction], writers: Mapping[Version, Transaction], look: Observation
) -> tuple[set[Transaction], list[View], list[Anomaly]]:
    happened = {t for t in history if t.ending is Ending.COMMITTED}
    waiting = [t for t in history if t in happened]
    views: list[View] = []
    anomalies: list[Anomaly] = []
    while waiting:
        for found in look(waiting.pop()):
            if isinstance(found, Anomaly):
                anomalies.append(found)
                continue
            views.append(found)
            for value in found.versions:
                writer = writers.get((found.key, value))
                if writer and writer.ending is Ending.UNKNOWN and writer not in happened:
                    happened.add(writer)
                    waiting.append(writer)
    return happened, views, anomalies


def _views_of_lists(t: Transaction) -> Iterator[View | Anomaly]:
    own: dict[str, tuple[Value, ...]] = defaultdict(tuple)
    for event in t.events:
        mine = own[event.key]
        if isinstance(event, Write):
            own[event.key] = (*mine, event.value)
            continue
        seen = tuple(event.value)
        if len(set(seen)) < len(seen):
            yield Anomaly(Kind.DUPLICATE, f"{t.name} read {_short(seen)} from {event.key}")
        elif mine and seen[-len(mine) :] != mine:
            yield _not_own(t, event, mine)
        else:
            is_missing = isinstance(event, Missing)
            yield View(t, event.key, seen[: len(seen) - len(mine)], is_missing)


def _views_of_registers(t: Transaction) -> Iterator[View | Anomaly]:
    own: dict[str, Value] = {}
    for event in t.events:
        if isinstance(event, Write):
            own[event.key] = None if isinstance(event, Deletion) else event.value
        elif event.key not in own:
            versions = () if event.value is None else (event.value,)
            yield View(t, event.key, versions, isinstance(event, Missing))
        elif event.value != own[event.key]:
            yield _not_own(t, event, own[event.key])


def _not_own(t: Transaction, event: Read, mine: Value) -> Anomaly:
    fact = f"{t.name} wrote {mine!r} to {event.key} and then read {_short(event.value)}"
    return Anomaly(Kind.INTERNAL, fact)


def _wrong_sources(view: View, writers: Mapping[Version, Transaction]) -> Iterator[Anomaly]:
    saw = f"{view.reader.name} read"
    for value in view.versions:
        writer = writers.get((view.key, value))
        if writer is None:
            fact = f"{saw} {value!r} from {view.key}, which nobody wrote"
            yield Anomaly(Kind.GARBAGE_READ, fact)
        elif writer.ending is Ending.ABORTED:
            fact = f"{saw} {value!r} from {view.key}, which {writer.name} wrote and aborted"
            yield Anomaly(Kind.G1A, fact)
    last = view.versions[-1:]
    writer = writers.get((view.key, *last)) if last else None
    if writer is not None and writer is not view.reader:
        final = [w.value for w in writer.writes() if w.key == view.key][-1]
        if final != last[0]:
            fact = f"{saw} {last[0]!r} from {view.key}; {writer.name} went on to write {final!r}"
            yield Anomaly(Kind.G1B, fact)


def _known(view: View, writers: Mapping[Version, Transaction]) -> tuple[Value, ...]:
    return tuple(value for value in view.versions if (view.key, value) in writers)


def _fits(view: View, longest: Mapping[str, tuple[Value, ...]], anomalies: list[Anomaly]) -> bool:
    order = longest.get(view.key, ())
    if view.versions == order[: len(view.versions)]:
        return True
    fact = (
        f"{view.reader.name} read {_short(view.versions)} from {view.key}, others {_short(order)}"
    )
    anomalies.append(Anomaly(Kind.INCOMPATIBLE_ORDER, fact))
    return False


def _timestamps(happened: Iterable[Transaction]) -> dict[Version, int]:
    events = [event for t in happened for event in t.events]
    at = {(e.key, e.value): e.at for e in events if e.at is not None and e.value is not None}
    for t in happened:
        written = [(write.key, write.value) for write in t.writes()]
        known = [at[version] for version in written if version in at]
        for version in written if known else ():
            at.setdefault(version, known[0])
    return at


def _replaced(t: Transaction) -> Iterator[Succession]:
    current: dict[str, Value] = {}
    for event in t.events:
        if isinstance(event, Write):
            yield Succession(event.key, current.get(event.key), event.value)
        current[event.key] = event.value


class Gap(NamedTuple):
    """A time in which a key had no value, since a deletion or the first, until a write or now."""

    name: Value = None
    since: Transaction | None = None
    until: Transaction | None = None

    @property
    def is_certain(self) -> bool:
        return self.since is None or self.since.ending is Ending.COMMITTED

    def may_be_met_by(self, t: Transaction) -> bool:
        begins = self.since is None or t.end is None or self.since.start < t.end
        last = self.until.known_end if self.until else None
        return self.since is not t and begins and (last is None or t.start < last)


def with_absences_named(history: Sequence[Transaction]) -> list[Transaction]:
    gaps = _gaps([t for t in history if t.ending is not Ending.ABORTED])
    return [_renamed(t, gaps) for t in history]


def _gaps(history: Sequence[Transaction]) -> dict[str, list[Gap]]:
    writes = [(t, write) for t in history for write in t.writes()]
    at = _timestamps(history)
    versions: dict[str, list[tuple[float, Transaction, Write]]] = defaultdict(list)
    for t, write in writes:
        versions[write.key].append((at.get((write.key, write.value), inf), t, write))
    found: dict[str, list[Gap]] = {}
    for key in {write.key for _, write in writes if isinstance(write, Deletion)}:
        order = sorted(versions[key], key=lambda version: version[0])
        dated = [t for when, t, _ in order if when < inf]
        found[key] = [Gap(until=dated[0] if dated else None)]
        for place, (when, t, write) in enumerate(order):
            if isinstance(write, Deletion):
                after = dated[place + 1 : place + 2] if when < inf else []
                found[key].append(Gap(write.value, t, *after))
    return found


def _renamed(t: Transaction, gaps: Mapping[str, list[Gap]]) -> Transaction:
    events: list[Read | Write] = []
    own: set[str] = set()
    for event in t.events:
        if isinstance(event, Write):
            own.add(event.key)
        if isinstance(event, Write) or event.value is not None or event.key in own:
            events.append(event)
            continue
        known = gaps.get(event.key, [Gap()])
        met = [gap for gap in known if gap.may_be_met_by(t)] or known[-1:]
        if len(met) == 1 and met[0].is_certain:
            events.append(event._replace(value=met[0].name))
    return replace(t, events=tuple(events))


def _short(value: Value) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 80 else f"{text[:30]} ... {text[-45:]}"
