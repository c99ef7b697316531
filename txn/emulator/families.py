"""A column family's settings between HBase's names for them and ours, and what HBase refuses.

HBase keeps every setting as text under a name, and shows some of them a second time as typed
fields. A typed field goes before a text of the same setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from txn.tables.operations import FamilySettings
from txn.tables.refusal import Refused

FOREVER_S = 2_147_483_647


def _flag(text: str) -> bool:
    return text.lower() == "true"


def _ttl(text: str) -> int | None:
    return None if text.upper() == "FOREVER" else ttl_ms(int(text))


_TEXTS: dict[bytes, tuple[str, Callable[[str], Any]]] = {
    b"VERSIONS": ("versions", int),
    b"MIN_VERSIONS": ("min_versions", int),
    b"TTL": ("ttl_ms", _ttl),
    b"KEEP_DELETED_CELLS": ("keep_deleted_cells", str.upper),
    b"NEW_VERSION_BEHAVIOR": ("new_version_behavior", _flag),
    b"COMPRESSION": ("compression", str.upper),
    b"BLOOMFILTER": ("bloom_filter", str.upper),
    b"DATA_BLOCK_ENCODING": ("data_block_encoding", str.upper),
    b"BLOCKSIZE": ("block_size", int),
    b"IN_MEMORY": ("in_memory", _flag),
    b"BLOCKCACHE": ("block_cache", _flag),
    b"REPLICATION_SCOPE": ("scope", int),
    b"DFS_REPLICATION": ("dfs_replication", int),
    b"CACHE_BLOOMS_ON_WRITE": ("cache_blooms_on_write", _flag),
    b"CACHE_DATA_ON_WRITE": ("cache_data_on_write", _flag),
    b"CACHE_INDEX_ON_WRITE": ("cache_indexes_on_write", _flag),
    b"COMPRESS_TAGS": ("compress_tags", _flag),
    b"EVICT_BLOCKS_ON_CLOSE": ("evict_blocks_on_close", _flag),
    b"PREFETCH_BLOCKS_ON_OPEN": ("prefetch_blocks_on_open", _flag),
}
_ALWAYS_SHOWN = frozenset(
    {
        b"VERSIONS",
        b"MIN_VERSIONS",
        b"TTL",
        b"KEEP_DELETED_CELLS",
        b"COMPRESSION",
        b"BLOOMFILTER",
        b"DATA_BLOCK_ENCODING",
        b"BLOCKSIZE",
        b"IN_MEMORY",
        b"BLOCKCACHE",
        b"REPLICATION_SCOPE",
    }
)
_DEFAULTS = FamilySettings()


def ttl_ms(seconds: int) -> int | None:
    """Return a TTL of HBase in milliseconds, None for its "for ever"."""
    return None if seconds == FOREVER_S else seconds * 1000


def ttl_s(settings: FamilySettings) -> int:
    """Return the TTL as HBase shows it."""
    return FOREVER_S if settings.ttl_ms is None else settings.ttl_ms // 1000


def with_texts(settings: FamilySettings, texts: Mapping[bytes, bytes]) -> FamilySettings:
    """Return the settings with those that the texts name; unknown names are kept as they are."""
    others = dict(settings.attributes)
    changes: dict[str, Any] = {}
    for name, value in texts.items():
        known = _TEXTS.get(name)
        if known is None:
            others[name] = value
            continue
        field, read = known
        try:
            changes[field] = read(value.decode())
        except ValueError as error:
            raise Refused("illegal argument", "not a setting", name=name, value=value) from error
    return replace(settings, **changes, attributes=tuple(others.items()))


def texts_of(settings: FamilySettings) -> dict[bytes, bytes]:
    """Return the settings as the texts that HBase keeps them in."""
    found = dict(settings.attributes)
    for name, (field, _) in _TEXTS.items():
        value = getattr(settings, field)
        if name in _ALWAYS_SHOWN or value != getattr(_DEFAULTS, field):
            found[name] = _text(ttl_s(settings) if field == "ttl_ms" else value)
    found[b"INDEX_BLOCK_ENCODING"] = b"NONE"
    return found


def _text(value: object) -> bytes:
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()
