"""What clients do so that their history says much: reads, and transactions on what they have read.

Few keys, many clients. A transaction asserts the versions that it read, which makes its reads part
of it; the read before it is a transaction of its own in the history, since `read` is atomic too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.history.anomalies import Anomaly
from tests.history.check import check_lists, check_registers
from tests.history.events import Ending, Read, Transaction, Value, Write
from tests.history.recording import Recorder
from txn import (
    Cell,
    CommitOutcomeUnknown,
    Committed,
    Engine,
    Exact,
    Key,
    Mutation,
    Not,
    Request,
    Some,
    TxnError,
    Version,
)
from txn.assertions import Assertion
from txn.engine import Ack

Cells = Mapping[Key, Cell | None]
Look = Callable[[Engine, Sequence[Key]], Cells]


@dataclass(frozen=True, slots=True)
class Model:
    """What a cell holds. value: of a cell; merged: the bytes after a write; check: of a history.
    blind: how many of the keys that are written need not have been read."""

    value: Callable[[Cell | None], Value]
    merged: Callable[[Cell | None, str], str]
    check: Callable[[Sequence[Transaction]], list[Anomaly]]
    blind: float = 0.0


def _elements(cell: Cell | None) -> tuple[str, ...]:
    return tuple(cell.value.decode().split()) if cell else ()


LISTS = Model(_elements, lambda cell, element: " ".join([*_elements(cell), element]), check_lists)
REGISTERS = Model(
    lambda cell: cell.value.decode() if cell else None, lambda _, new: new, check_registers, 0.4
)


def atomic(engine: Engine, keys: Sequence[Key]) -> Cells:
    """Read as of one instant."""
    return engine.read(keys)


def raw(engine: Engine, keys: Sequence[Key]) -> Cells:
    """Read as a plain client of HBase does, a get for each key, knowing of no transactions."""
    return {key: engine.context.store.read([key])[key] for key in keys}


@dataclass(slots=True)
class Work:
    """The keys, and what one client, or several that take turns, do with them."""

    model: Model
    keys: Sequence[Key]
    chance: Random
    recorder: Recorder
    name: str
    look_with: Look = atomic
    done: int = field(default=0)

    def look(self, engine: Engine, keys: Sequence[Key] | None = None) -> Cells | None:
        """Read some keys, all if not told which; None if the engine could not."""
        name, start = self._next(), self.recorder.now()
        try:
            cells = self.look_with(engine, keys or self.keys)
        except TxnError:
            return None
        events = [self._read(key, cells) for key in keys or self.keys]
        self.recorder.did(name, events, start)
        return cells

    def write(self, engine: Engine, ack: Ack = "complete", once: str | None = None) -> None:
        """Read, and write to some of what was read, if it is still so."""
        keys = self.some(self.keys)
        cells = self.look(engine, keys)
        if cells is None:
            return
        name = self._next()
        request = self._request(name, cells, once)
        try:
            result: Committed | TxnError = engine.commit(
                request.mutations, request.assertions, once=once, ack=ack
            )
        except TxnError as error:
            result = error
        self._end(name, result)

    def block(self, engine: Engine, ack: Ack = "complete", once: str | None = None) -> None:
        """The same in an interactive transaction, which looks once or twice, and may not write."""
        name, start, noted = self._next(), self.recorder.now(), False
        try:
            with engine.transaction(ack=ack, once=once) as t:
                cells: dict[Key, Cell | None] = {}
                for _ in range(self.chance.randint(1, 2)):
                    values = t.get_many(self.some(self.keys))
                    cells.update({key: _undated(value) for key, value in values.items()})
                written = self._written(cells) if self.chance.random() < 0.8 else []
                for key in written:
                    t.put(key, self.model.merged(cells.get(key), name))
                self._begin(name, cells, cells, written, start)
                noted = True
        except TxnError as error:
            if noted:
                self._end(name, error)
        else:
            self._end(name, t.result)

    def write_many(self, engine: Engine, ack: Ack, tokens: Sequence[str | None]) -> None:
        """The same some times over, sent together."""
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
        return self.chance.sample(keys, self.chance.randint(1, min(3, len(keys))))

    def _request(self, name: str, cells: Cells, once: str | None) -> Request:
        written = self._written(cells)
        seen = [key for key in cells if key not in written or not self._is_blind()]
        self._begin(name, cells, seen, written)
        mutations = tuple(Mutation(k, self.model.merged(cells.get(k), name)) for k in written)
        assertions = tuple(self._as_seen(k, cells[k]) for k in seen)
        return Request(mutations, assertions, None if once is None else once.encode())

    def _written(self, cells: Cells) -> list[Key]:
        """Choose what to write to: some of what was read, or of all keys where that can be."""
        return self.some(self.keys if self._is_blind() else list(cells))

    def _is_blind(self) -> bool:
        return self.chance.random() < self.model.blind

    def _begin(
        self,
        name: str,
        cells: Cells,
        seen: Collection[Key],
        written: Sequence[Key],
        start: int | None = None,
    ) -> None:
        reads = [self._read(key, cells) for key in seen]
        self.recorder.begin(name, [*reads, *(Write(_text(key), name) for key in written)], start)

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

    def _as_seen(self, key: Key, cell: Cell | None) -> Assertion:
        if self.chance.random() < 0.5:
            return Version(key, cell.timestamp if cell else None)
        return Exact(key, cell.value) if cell else Not(Some(key))

    def _next(self) -> str:
        self.done += 1
        return f"{self.name}.{self.done}"


def _text(key: Key) -> str:
    return f"{key.row.decode()}/{key.column.decode()}"


def _undated(value: bytes | None) -> Cell | None:
    """A block tells values alone."""
    return None if value is None else Cell(value, 0)
