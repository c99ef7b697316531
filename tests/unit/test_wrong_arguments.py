"""Wrong arguments of everything that is public: an error of ours that was raised before a write.

Each function and method gets one wrong value for one argument at a time, beside valid ones. It may
take the value, which may be right there, or raise a TxnError and write nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from enum import Enum
from itertools import product
from pathlib import Path as File
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from recovery import Finding, InGrace, Kind
from recovery.scan import whole_row
from tests.unit.worlds import World, X, Y, stopped_at
from txn import (
    And,
    Assertion,
    AsyncEngine,
    Delete,
    Engine,
    Key,
    Mutation,
    Policy,
    Request,
    Some,
    TxnError,
)
from txn.leases import open_leases
from txn.leases.service import LeaseService
from txn.locks import Mode, exclusive, path
from txn.locks.opening import open_stored
from txn.model import Cell, Row
from txn.protocol.statuses import Status
from txn.stores.base import StoreWrapper
from txn.testing.counting import CountingStore
from txn.testing.faulty import FaultyStore

WRONG: tuple[Any, ...] = (
    *(None, 5, -1, 10**30, math.nan, 1.5, True, "", b"", "data", b"data", "\ud800", object()),
    *([], [None], [5], ["\ud800"], {}, {5: 5}, {"a": None}, (), (1, 2), lambda *_: None),
)
bad: Any = 5
RECORDS: tuple[Any, ...] = (
    *(Finding(kind) for kind in Kind),
    *(Finding(kind, b"", X, {"newest": -1, "since": bad, "value": b"x"}) for kind in Kind),
    *(Finding(Kind.DECIDED, bad, bad, bad), Row(b"r", bad), Row(b"r", {bad: bad}), Row(b"", {})),
    *(Key("r", "d", "x"), Mutation(bad, "1"), Some(bad), And(bad), Request(bad, bad)),
    *(Request((bad,), bad), Request((Mutation(X, "1"),), labels=bad), Request((), once=bad)),
)
MODULES = ("txn", "recovery", "txn.locks", "txn.leases", "txn.spark")
MORE: Mapping[str, tuple[Any, ...]] = {
    "txn.leases": (LeaseService,),
    "txn": (FaultyStore, CountingStore),
}
"""What is public beside `__all__`: made by its functions, or in modules of its own."""

BY_LIBRARY = {
    *("AsyncTransaction", "OptimisticTransaction", "LockManager", "LeaseService"),
    *("Held", "HeldLease", "Lock", "Lease", "Explanation", "Summary", "Committed"),
    *("Repaired", "NothingToDo", "LeftAlone"),
}
"""Classes of which only the library makes instances."""

OF_SPARK = {"TxnDataSource", "Counts"}
"""Classes that Spark calls."""

NOT_HERE = {"Engine.begin_block", "Engine.over", "InGrace.add", "InGrace.merge", "bind_partition"}
"""Between our own parts; or with the arguments of another function."""


class Place:
    """Valid arguments by their names, instances of the classes, and what is stored."""

    def __init__(self, folder: File) -> None:
        policy = Policy(attempts=2, deadline_ms=200, lock_ttl_ms=1_000, store_patience_ms=10)
        self.world = World(policy)
        transaction = stopped_at(self.world, Status.LOCKED)
        self.engine = self.world.client()
        self.locks = open_stored(self.engine, name="me")
        self.url = f"sqlite:///{folder}/leases"
        self.leases: LeaseService | None = None
        context = self.engine.context

        def to_request(row: object) -> Any:
            return [Mutation(Y, "1")], []

        finding = Finding(Kind.UNDECIDED, transaction)
        change = Mutation(Y, "1")
        self.valid: dict[str, Any] = {
            **{"uri": "memory://", "url": self.url},
            **dict.fromkeys(("store", "inner"), self.world.store),
            **{"engine": self.engine, "context": context, "mutations": (change,)},
            **{"requests": [([change], [])], "request": ([change], []), "keys": [Y]},
            **{"LockManager.hold.requests": exclusive("d/u"), "OptimisticTransaction.wanted": [Y]},
            **{"LockManager.release.wanted": "d/u", "convert.wanted": "six-phase"},
            **{"wanted": [Y], "function": lambda *_: None, "AsyncEngine.run.function": do_nothing},
            **{"transaction": transaction, "row_key": transaction, "table": "data", "row": "r"},
            **{"families": ["d"], "family": "d", "column": "x", "key": Y, "value": "1"},
            **{"Key.parse.text": "t/r/d:x", "text": "d/t", "assertion": Some(Y), "assertions": ()},
            **{"timestamp": 1, "cells": {Y: Cell(b"1", 1)}},
            **{"seen": whole_row(context, transaction)},
            **{"token": b"token", "finding": finding, "findings": [finding], "kind": Kind.DECIDED},
            **{"mode": Mode.SHARED, "path": path("d/u")},
            **{"parts": ("d", "u"), "name": "me", "host": "here", "settings": {}},
            **{"objects": [exclusive("d/u")], "lease_id": 1, "duration_s": 1},
            **{"rows": [{"a": 1}], "to_request": to_request, "options": {}},
            **{"spark": object(), "backup.store": "embedded:///nowhere", "dest": "-"},
        }

    def find_valid(self, name: str) -> Any:
        """Return the value of `class.method.argument`, or of the argument alone."""
        parts = name.split(".")
        names = [".".join(parts[i:]) for i in range(len(parts))]
        return next(self.valid[each] for each in names if each in self.valid)

    def make(self, kind: type) -> Any:
        match kind.__name__:
            case "Engine":
                return self.engine
            case "AsyncEngine":
                return AsyncEngine(self.engine)
            case "OptimisticTransaction":
                return self.engine.transaction()
            case "AsyncTransaction":
                return AsyncEngine(self.engine).transaction()
            case "LockManager":
                return self.locks
            case "LeaseService":
                self.leases = self.leases or open_leases(self.url, max_lease_s=60)
                return self.leases
            case _:
                return {"InGrace": InGrace(), "Mode": Mode.SHARED, "Key": Y}[kind.__name__]

    def list_stored(self) -> list[Any]:
        store = self.world.store
        tables = {table: store.describe(table) for table in store.list_tables()}
        return [tables, *(row for table in tables for row in store.scan(table))]

    def close(self) -> None:
        if self.leases:
            self.leases.close()
        self.locks.close()
        self.engine.close()


async def do_nothing(*_: object) -> None:
    """A block that does nothing."""


def list_public() -> Iterator[tuple[str, type | None, Any]]:
    """Yield each function and constructor, and each method with its class."""
    for module in map(importlib.import_module, MODULES):
        named = [getattr(module, name) for name in module.__all__]
        for thing in (*named, *MORE.get(module.__name__, ())):
            own = getattr(thing, "__module__", "").split(".")[0] in ("txn", "recovery")
            if not own or not callable(thing) or get_origin(thing):
                continue
            if not inspect.isclass(thing):
                yield thing.__name__, None, thing
            elif not issubclass(thing, BaseException | Enum) and thing.__name__ not in OF_SPARK:
                if thing.__name__ not in BY_LIBRARY:
                    yield thing.__name__, None, thing
                for name, method in inspect.getmembers(thing, callable):
                    owner = next((each for each in thing.__mro__ if name in vars(each)), type)
                    is_ours = owner.__module__.split(".")[0] in ("txn", "recovery")
                    if is_ours and not issubclass(thing, StoreWrapper) and not name.startswith("_"):
                        yield f"{thing.__name__}.{name}", thing, method


def list_arguments(kind: type | None, called: Any) -> list[inspect.Parameter]:
    found = list(inspect.signature(called).parameters.values())
    is_bound = kind is None or inspect.ismethod(called)
    return [each for each in found[0 if is_bound else 1 :] if each.kind is not each.VAR_KEYWORD]


def takes_several(called: Any, name: str) -> bool:
    """Whether the argument is for several, and one text is not among what it is for."""
    try:
        hint = get_type_hints(called.__init__ if inspect.isclass(called) else called).get(name)
    except NameError:
        return False
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    origins = [get_origin(kind) for kind in kinds]
    several = [each for each in origins if inspect.isclass(each) and issubclass(each, Iterable)]
    return str not in kinds and any(not issubclass(each, Mapping) for each in several)


async def use(place: Place, kind: type | None, called: Any, given: Mapping[str, Any]) -> None:
    """Call it, and do with the result what it is for."""
    several = [
        each.name for each in list_arguments(kind, called) if each.kind is each.VAR_POSITIONAL
    ]
    args = [given[name] for name in several if name in given]
    kwargs = {name: value for name, value in given.items() if name not in several}
    if kind is None or inspect.ismethod(called):
        await finish(place, called(*args, **kwargs))
        return
    made = place.make(kind)
    method = getattr(made, called.__name__)
    async with AsyncExitStack() as stack:
        if kind.__name__ == "AsyncTransaction":
            await stack.enter_async_context(made)
        elif kind.__name__ == "OptimisticTransaction":
            stack.enter_context(made)
        await finish(place, method(*args, **kwargs))


async def finish(place: Place, result: Any) -> None:
    if isinstance(result, Request):
        place.engine.check_request(result)
    elif isinstance(result, Mutation | Delete):
        place.engine.check_request(([result], []))
    elif isinstance(result, Assertion):
        place.engine.check_request(([], [result]))
    elif inspect.isawaitable(result):
        await finish(place, await result)
    elif isinstance(result, AsyncIterator):
        [each async for each in result]
    elif isinstance(result, Iterator):
        list(result)
    elif isinstance(result, Future):
        result.result(5)
    elif isinstance(result, Engine | AsyncEngine):
        return
    elif hasattr(result, "__aenter__"):
        async with result:
            pass
    elif hasattr(result, "__enter__") and hasattr(result, "close"):
        with result:
            pass


PUBLIC = {name: (kind, called) for name, kind, called in list_public()}
CHECKED = [name for name in PUBLIC if name not in NOT_HERE and list_arguments(*PUBLIC[name])]


@pytest.mark.parametrize("name", CHECKED)
def test_a_wrong_argument_is_refused_before_anything_is_written(name: str, tmp_path: File) -> None:
    """They were raw errors from somewhere inside, or were taken for something else."""
    kind, called = PUBLIC[name]
    arguments = list_arguments(kind, called)
    wrong: list[str] = []
    place = Place(tmp_path)
    before: list[Any] = []
    needed = [each for each in arguments if each.default is each.empty]
    for argument, value in (*product(arguments, WRONG), *product(needed, RECORDS)):
        before = before or place.list_stored()
        given = {
            each.name: place.find_valid(f"{name}.{each.name}")
            for each in arguments
            if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
        }
        given[argument.name] = value
        shown = f"{argument.name}={value!r}"
        try:
            asyncio.run(use(place, kind, called, given))
            if isinstance(value, str | bytes) and takes_several(called, argument.name):
                wrong.append(f"{shown} was taken for several")
        except TxnError as error:
            if place.list_stored() != before:
                wrong.append(f"{shown} wrote something before {error!r}")
        except BaseException as error:  # noqa: BLE001
            wrong.append(f"{shown}: {error!r}")
        if place.leases:
            place.leases.force_drop_lease(())
        if place.list_stored() != before:
            place.close()
            place, before = Place(tmp_path), []
    place.close()
    assert not wrong, "\n".join(wrong)
