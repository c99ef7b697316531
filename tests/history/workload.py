"""What clients do: reads, and transactions on what they have read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.history.anomalies import Anomaly
from tests.history.check import check_lists, check_registers
from tests.history.events import Deletion, Ending, Missing, Read, Transaction, Value, Write
from tests.history.recording import Recorder
from txn import Cell, Committed, Delete, Engine, Key, Mutation, OptimisticTransaction, Request
from txn.assertions import Assertion, Exact, Not, Some, Version
from txn.errors import CommitOutcomeUnknown, TxnError
from txn.request import Ack
from txn.spans import Span, make_span

Cells = Mapping[Key, Cell | None]
Commit = Callable[[Request], Committed]
Observation = Callable[[Engine, Sequence[Key]], Cells]


@dataclass(frozen=True, slots=True)
class Model:
    """What a cell holds. merged: the bytes after a write, None for a deletion. put: writes them in
    a block. blind: how many of the keys that are written need not have been read."""

    value: Callable[[Cell | None], Value]
    merged: Callable[[Cell | None, str, Random], bytes | None]
    put: Callable[[OptimisticTransaction, Key, Cell | None, bytes | None], object]
    check: Callable[[Sequence[Transaction]], list[Anomaly]]
    blind: float = 0.0

    def write(self, key: Key, name: str, merged: bytes | None) -> Write:
        if merged is None:
            return Deletion(_text(key), name)
        value = self.value(Cell(merged, 0))
        return Write(_text(key), value[-1] if isinstance(value, tuple) else value)


def _bytes(cell: Cell | None) -> bytes:
    return cell.value if cell else b""


def _put(t: OptimisticTransaction, key: Key, cell: Cell | None, merged: bytes | None) -> None:
    if merged is None:
        t.delete(key)
    else:
        t.put(key, merged)


def _count(cell: Cell | None) -> int:
    return int.from_bytes(_bytes(cell))


LISTS = Model(
    lambda cell: tuple(_bytes(cell).decode().split()),
    lambda cell, name, rng: b"%b %b" % (_bytes(cell), name.encode()),
    lambda t, key, cell, merged: t.append(key, (merged or b"").removeprefix(_bytes(cell))),
    check_lists,
)
REGISTERS = Model(
    lambda cell: cell.value.decode() if cell else None,
    lambda cell, name, rng: None if rng.random() < 0.3 else name.encode(),
    _put,
    check_registers,
    blind=0.4,
)
# Each adds an amount of its own, so that no sum is reached twice.
COUNTERS = Model(
    lambda cell: _count(cell) if cell else None,
    lambda cell, name, rng: (_count(cell) + rng.getrandbits(48) + 1).to_bytes(8),
    lambda t, key, cell, merged: t.increment(key, int.from_bytes(merged or b"") - _count(cell)),
    check_registers,
)
MODELS = {"lists": LISTS, "registers": REGISTERS, "counters": COUNTERS}


def atomic(engine: Engine, keys: Sequence[Key]) -> Cells:
    return engine.read(keys)


def raw(engine: Engine, keys: Sequence[Key]) -> Cells:
    return {key: engine.context.store.read([key])[key] for key in keys}


@dataclass(slots=True)
class Work:
    """The keys, and what one client, or several that take turns, do with them."""

    model: Model
    keys: Sequence[Key]
    rng: Random
    recorder: Recorder
    name: str
    look_with: Observation = atomic
    done: int = field(default=0)

    def look(self, engine: Engine, keys: Sequence[Key] | None = None) -> Cells | None:
        name, start = self._next(), self.recorder.now()
        try:
            cells = self.look_with(engine, keys or self.keys)
        except TxnError:
            return None
        events = [self._read(key, cells) for key in keys or self.keys]
        self.recorder.did(name, events, start)
        return cells

    def scan(self, engine: Engine) -> None:
        start, (wanted, inside) = self.recorder.now(), self._range()
        snapshot = self.rng.random() < 0.5
        try:
            rows = list(engine.scan(*_bounds(wanted), snapshot=snapshot))
        except TxnError:
            return
        cells = {key: cell for row in rows for key, cell in row.cells.items()}
        by_row = [[k for k in inside if k.row == row] for row in sorted({k.row for k in inside})]
        for part in [inside] if snapshot else by_row:
            self.recorder.did(self._next(), self._scanned(part, cells), start)

    def write(self, engine: Engine, ack: Ack = "complete", once: str | None = None) -> None:
        self.write_by(
            lambda r: engine.commit(
                r.mutations, r.assertions, once=once, once_content=once, ack=ack
            ),
            engine,
            once,
        )

    def write_by(self, commit: Commit, engine: Engine, once: str | None) -> None:
        keys = self.some(self.keys)
        cells = self.look(engine, keys)
        if cells is None:
            return
        name = self._next()
        request = self._request(name, cells, once)
        try:
            result: Committed | TxnError = commit(request)
        except TxnError as error:
            result = error
        self._end(name, result)

    def block(self, engine: Engine, ack: Ack = "complete", once: str | None = None) -> None:
        """The same in an interactive transaction, which may not write."""
        name, start, noted = self._next(), self.recorder.now(), False
        try:
            with engine.transaction(ack=ack, once=once) as t:
                events, cells = self._met(t)
                written = self._merged(name, cells) if self.rng.random() < 0.8 else {}
                for key, merged in written.items():
                    self.model.put(t, key, cells.get(key), merged)
                writes = [self.model.write(key, name, merged) for key, merged in written.items()]
                self.recorder.begin(name, [*events, *writes], start)
                noted = True
        except TxnError as error:
            if noted:
                self._end(name, error)
        else:
            self._end(name, t.result)

    def write_many(self, engine: Engine, ack: Ack, tokens: Sequence[str | None]) -> None:
        cells = self.look(engine)
        if cells is None:
            return
        names = [self._next() for _ in tokens]
        requests = [
            self._request(name, cells, once) for name, once in zip(names, tokens, strict=True)
        ]
        for name, result in zip(names, engine.commit_many(requests, ack=ack), strict=True):
            self._end(name, result)

    def some(self, keys: Sequence[Key]) -> list[Key]:
        return self.rng.sample(keys, self.rng.randint(1, min(3, len(keys))))

    def _met(self, t: OptimisticTransaction) -> tuple[list[Read], Cells]:
        events: list[Read] = []
        cells: dict[Key, Cell | None] = {}
        for _ in range(self.rng.randint(1, 2)):
            if self.rng.random() < 0.5:
                keys = self.some(self.keys)
                cells.update({key: undated(value) for key, value in t.get_many(keys).items()})
                events += [self._read(key, cells) for key in keys]
            else:
                wanted, inside = self._range()
                found = {
                    k: c.value for row in t.scan(*_bounds(wanted)) for k, c in row.cells.items()
                }
                cells.update({key: undated(found.get(key)) for key in inside})
                events += self._scanned(inside, cells)
        return events, cells

    def _range(self) -> tuple[Span, list[Key]]:
        first, last = sorted(self.rng.choices([key.row for key in self.keys], k=2))
        if self.rng.random() < 0.5:
            first, last = min(k.row for k in self.keys), max(k.row for k in self.keys)
        wanted = make_span(self.keys[0].table, first, last + b"\0")
        return wanted, [key for key in self.keys if key in wanted]

    def _request(self, name: str, cells: Cells, once: str | None) -> Request:
        written = self._merged(name, cells)
        seen = [key for key in cells if key not in written or not self._is_blind()]
        reads = [self._read(key, cells) for key in seen]
        writes = [self.model.write(key, name, merged) for key, merged in written.items()]
        self.recorder.begin(name, [*reads, *writes])
        assertions = tuple(self._as_seen(k, cells[k]) for k in seen)
        return Request(tuple(_mutations(written)), assertions, once.encode() if once else None)

    def _merged(self, name: str, cells: Cells) -> dict[Key, bytes | None]:
        keys = self.some(self.keys if self._is_blind() else list(cells))
        return {key: self.model.merged(cells.get(key), name, self.rng) for key in keys}

    def _is_blind(self) -> bool:
        return self.rng.random() < self.model.blind

    def _end(self, name: str, result: Committed | TxnError | None) -> None:
        if result is None or (isinstance(result, Committed) and not result.repeated):
            self.recorder.end(name, Ending.COMMITTED, result.timestamp if result else None)
        elif isinstance(result, CommitOutcomeUnknown):
            self.recorder.end(name, Ending.UNKNOWN)
        else:
            self.recorder.end(name, Ending.ABORTED)  # or its token had committed before

    def _read(self, key: Key, cells: Cells) -> Read:
        cell = cells[key]
        at = cell.timestamp if cell else None
        return Read(_text(key), self.model.value(cell), at or None)

    def _scanned(self, keys: Sequence[Key], found: Cells) -> list[Read]:
        known = {key: found.get(key) for key in keys}
        reads = ((key, self._read(key, known)) for key in keys)
        return [read if known[key] else Missing(*read) for key, read in reads]

    def _as_seen(self, key: Key, cell: Cell | None) -> Assertion:
        if self.rng.random() < 0.5:
            return Version(key, cell.timestamp if cell else None)
        return Exact(key, cell.value) if cell else Not(Some(key))

    def _next(self) -> str:
        self.done += 1
        return f"{self.name}.{self.done}"


def _mutations(written: Mapping[Key, bytes | None]) -> Iterable[Mutation | Delete]:
    for key, merged in written.items():
        yield Delete(key) if merged is None else Mutation(key, merged)


def _bounds(wanted: Span) -> tuple[bytes, bytes, bytes | None]:
    return wanted.table, wanted.start, wanted.stop


def _text(key: Key) -> str:
    return f"{key.row.decode()}/{key.column.decode()}"


def undated(value: bytes | None) -> Cell | None:
    return None if value is None else Cell(value, 0)
