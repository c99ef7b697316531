"""A table's entry in the catalog, and its stored form, which old entries keep readable.

Only what differs from the default is stored, except for versions and ttl_ms, which always are.

    stored  = JSON; bytes are text of ISO 8859-1, but the names of families of UTF-8
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from txn.errors import CorruptRowError
from txn.model import DATABASE_ENTRY, Family
from txn.tables.operations import FamilySettings

_SIMPLE = [
    item.name for item in fields(FamilySettings) if item.name not in {"attributes", "configuration"}
]
_DEFAULTS = FamilySettings()


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table's number and its families.

    masked: whether any of its rows has ever had masks. splits: where its regions, which mean
    nothing here, begin after the first. created_ms: when it was made.
    """

    number: int
    families: Mapping[bytes, FamilySettings]
    enabled: bool = True
    masked: bool = False
    splits: tuple[bytes, ...] = ()
    created_ms: int = 0

    @property
    def prefix(self) -> bytes:
        """The first bytes of each of the table's keys."""
        return self.number.to_bytes(4)

    @property
    def stop(self) -> bytes:
        """The first key after those of the table."""
        return (self.number + 1).to_bytes(4)


def family(settings: FamilySettings) -> Family:
    """Return what the protocol asks of a family's settings."""
    database = dict(settings.configuration).get(DATABASE_ENTRY)
    return Family(
        settings.versions, settings.ttl_ms, database=database.encode() if database else None
    )


def encode(table: TableEntry) -> bytes:
    """Return the stored form of a table."""
    families = {name.decode(): _encode(one) for name, one in sorted(table.families.items())}
    stored: dict[str, Any] = {"number": table.number, "families": families}
    if not table.enabled:
        stored["enabled"] = False
    if table.masked:
        stored["masked"] = True
    if table.splits:
        stored["splits"] = [split.decode("latin-1") for split in table.splits]
    if table.created_ms:
        stored["created_ms"] = table.created_ms
    return json.dumps(stored).encode()


def decode(key: bytes, value: bytes) -> TableEntry:
    """Return the table of a stored form; CorruptRowError where it is none."""
    try:
        stored = json.loads(value)
        return TableEntry(
            stored["number"],
            {name.encode(): _settings(shown) for name, shown in stored["families"].items()},
            stored.get("enabled", True),
            stored.get("masked", False),
            tuple(split.encode("latin-1") for split in stored.get("splits", ())),
            stored.get("created_ms", 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRowError("the catalog does not decode", key=key, stored=value[:200]) from error


def _encode(settings: FamilySettings) -> dict[str, Any]:
    shown: dict[str, Any] = {"versions": settings.versions, "ttl_ms": settings.ttl_ms}
    for name in _SIMPLE:
        value = getattr(settings, name)
        if value != getattr(_DEFAULTS, name):
            shown[name] = value
    if settings.attributes:
        shown["attributes"] = [
            [name.decode("latin-1"), value.decode("latin-1")] for name, value in settings.attributes
        ]
    if settings.configuration:
        shown["configuration"] = [list(pair) for pair in settings.configuration]
    return shown


def _settings(shown: Mapping[str, Any]) -> FamilySettings:
    simple = {name: shown[name] for name in _SIMPLE if name in shown}
    return FamilySettings(
        **simple,
        attributes=tuple(
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in shown.get("attributes", ())
        ),
        configuration=tuple((name, value) for name, value in shown.get("configuration", ())),
    )
