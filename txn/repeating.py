"""The loop of a thread that repeats its work, such as sending heartbeats.

Only a closed store, or the work itself, ends the loop. Any other exception is reported to the log
and the listener, and the work is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import ERROR, WARNING
from threading import Event

from txn.errors import StoreClosedError, TxnError
from txn.events import LOG, Listener, WorkFailed, WorkName, silent
from txn.text import name_failure

SOONER, SOONEST = 3, 10
"""The pause after a failure is a tenth of the interval, then two tenths, then a third."""


def repeat(
    name: WorkName,
    work: Callable[[], bool | None],
    over: Event,
    every_s: float,
    on_event: Listener = silent,
) -> None:
    """Repeat the work every `every_s` seconds, until `over` is set or the work returns False."""
    failures = 0
    pause_s = every_s
    while not over.wait(pause_s):
        try:
            if work() is False:
                return
            failures, pause_s = 0, every_s
        except StoreClosedError:
            return
        except Exception as error:  # noqa: BLE001  (logged and reported below)
            failures += 1
            pause_s = min(every_s / SOONER, failures * every_s / SOONEST)
            _report_failure(name, error, on_event)


def _report_failure(name: WorkName, error: Exception, on_event: Listener) -> None:
    is_ours = not isinstance(error, TxnError)
    LOG.log(
        ERROR if is_ours else WARNING,
        "failed, and is tried again: work=%s cause=%s",
        *(name, name_failure(error)),
        exc_info=error if is_ours else None,
    )
    try:
        on_event(WorkFailed(name))
    except Exception:  # noqa: BLE001  (a failing listener must not end the thread)
        LOG.exception("a listener failed: work=%s", name)
