"""Interrupts at every step of some modules: before a line, where a function begins, where it ends.

An interrupt is what Ctrl-C, a signal handler that raises, and a time limit of a job runner are to a
thread. With `twice`, another one comes at the next step at which the interpreter takes one, so in
the first call of what is to clean up. Left out is only what the interpreter cannot interrupt: the
end of a `with` over an object of C, and `try`.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import linecache
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from types import CodeType, FrameType, ModuleType
from typing import Any

PATIENCE_S = 20


class Interrupt(BaseException):
    """What nobody catches."""


class Interruption:
    """Raises Interrupt at the how-manyth step in these files, and in functions of these names, in
    its thread; and after so many more calls and returns (`then`) another one. place: where, once it
    has happened."""

    def __init__(
        self,
        files: Iterable[str],
        at: int,
        then: int | None = None,
        *,
        names: Iterable[str] = (),
    ) -> None:
        self.place: str | None = None
        self._files = frozenset(files)
        self._names = frozenset(names)
        self._left = at
        self._then = then

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace()  # of a measurement of coverage
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._before)
        sys.setprofile(None)
        return kind is Interrupt

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._step(frame, event, argument) if self._is_ours(frame.f_code) else None

    def _is_ours(self, code: CodeType) -> bool:
        # What is raised in a finalizer, or as a generator is closed, is lost.
        is_meant = code.co_filename in self._files or code.co_name in self._names
        return is_meant and code.co_name not in {"__del__", "<genexpr>"}

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "exception" or self.place is not None or _is_atomic(frame, event):
            return self._step
        self._left -= 1
        if self._left < 0:
            where = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            self.place = f"{event} {frame.f_code.co_name}:{frame.f_lineno}: {where}"
            if self._then is not None:
                sys.setprofile(self._again)
            raise Interrupt
        return self._step

    def _again(self, frame: FrameType, event: str, argument: object) -> None:
        is_counted = event in {"call", "c_return"} and self._is_ours(frame.f_code)
        if is_counted and self._then is not None:
            self._then -= 1
            if self._then >= 0:
                return
            self.place = f"{self.place}, and {event} {frame.f_code.co_name}:{frame.f_lineno}"
            raise Interrupt


def _is_atomic(frame: FrameType, event: str) -> bool:
    if event != "line":
        return False
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line == "try:" or frame.f_lasti in _list_exits(frame.f_code)


@cache
def _list_exits(code: CodeType) -> frozenset[int]:
    """Return where lines begin that only end a `with`, by calling `__exit__(None, None, None)`."""
    steps = list(dis.get_instructions(code))
    found = set()
    for number, step in enumerate(steps):
        shown = [
            each.opname.startswith("LOAD_CONST") and each.argval is None
            for each in steps[number : number + 5]
        ]
        if any(shown[skip : skip + 3] == [True] * 3 for skip in (0, 1, 2)):
            found.add(step.offset)
    return frozenset(found)


def interrupt_each(
    modules: Iterable[ModuleType],
    act: Callable[[], object],
    check: Callable[[], object],
    *,
    twice: bool = False,
    every: int = 1,
    at_least: int = 10,
) -> None:
    """Interrupt `act` at one step after the other, until it comes to its end; after each, `check`
    must succeed soon, in another thread."""
    files = [str(module.__file__) for module in modules]
    count = 0
    with ThreadPoolExecutor(1) as pool:
        while True:
            interruption = Interruption(files, count * every, 0 if twice else None)
            with interruption:
                act()
            gc.collect(0)
            try:
                pool.submit(check).result(PATIENCE_S)
            except BaseException as error:
                raise AssertionError(interruption.place) from error
            if interruption.place is None:
                break
            count += 1
    assert count >= at_least


def interrupt_at_random(
    act: Callable[[], object], *, times: int, seed: int, longest_s: float = 0.004
) -> None:
    """Repeat `act` in a thread that is interrupted as a time limit of a job runner does it, after
    random pauses: also inside of drivers."""
    rng, came = random.Random(seed), SimpleQueue[None]()
    is_armed = True

    def run() -> None:
        while is_armed:
            try:
                while is_armed:
                    act()
            except BaseException:  # noqa: BLE001  (drivers may raise another one instead)
                came.put(None)

    def interrupt() -> None:
        for _ in range(times):
            time.sleep(rng.random() * longest_s)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt)
            )
            with suppress(Empty):  # one in a finalizer is lost
                came.get(timeout=0.5)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        interrupt()
    finally:
        is_armed = False
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
