"""Hive's settings for locks, and the wait policy they define."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from txn.arguments import check_calls
from txn.errors import InvalidRequestError
from txn.locks.hive.model import DATABASE_SETTING
from txn.locks.model import Waiting


@check_calls
def from_hive(settings: Mapping[str, str], base: Waiting | None = None) -> Waiting:
    """Return the wait policy of Hive's settings: `hive.support.concurrency`,
    `hive.lock.numretries`, `hive.lock.sleep.between.retries` (`60s`, `500ms`, or seconds),
    `hive.unlock.numretries`.

    Raises InvalidRequestError for any other setting instead of ignoring it.
    """
    found = base or Waiting()
    for name, text in settings.items():
        if name == DATABASE_SETTING:
            continue
        if name not in _SETTINGS:
            raise InvalidRequestError("not a setting of locks", setting=name, known=HIVE_SETTINGS)
        field, value = _SETTINGS[name]
        found = replace(found, **{field: value(name, text.strip().lower())})
    return found


def _is_true(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise InvalidRequestError("neither true nor false", setting=name, given=text)
    return text == "true"


def _number(name: str, text: str) -> int:
    if not _is_number(text):
        raise InvalidRequestError("not a number", setting=name, given=text)
    return int(text)


_UNITS = {
    **dict.fromkeys(("ms", "msec"), 1),
    **dict.fromkeys(("", "s", "sec"), 1_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000),
    **dict.fromkeys(("h", "hour"), 3_600_000),
    **dict.fromkeys(("d", "day"), 86_400_000),
}


def _duration_ms(name: str, text: str) -> int:
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    if unit not in _UNITS or not _is_number(digits):
        raise InvalidRequestError("not a duration such as 60s or 500ms", setting=name, given=text)
    return int(digits) * _UNITS[unit]


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 18


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "hive.support.concurrency": ("enabled", _is_true),
    "hive.lock.numretries": ("retries", _number),
    "hive.lock.sleep.between.retries": ("pause_ms", _duration_ms),
    "hive.unlock.numretries": ("unlock_retries", _number),
}
HIVE_SETTINGS = tuple(_SETTINGS)
"""The settings that `from_hive` understands."""
