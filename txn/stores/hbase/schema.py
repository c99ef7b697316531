"""What transactions need of HBase's families, and the shell command that makes such families."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from txn.clock import Clock
from txn.errors import InvalidRequestError, StoreError
from txn.model import DATABASE_ENTRY, KEEP_DELETES_MS, Family, find_refusal, refuse_other_database
from txn.stores.base import Families
from txn.stores.hbase.places import first_line, is_legal

PURGE_MS = KEEP_DELETES_MS + 3_600_000
FOREVER_S = 2_147_483_647
PURGE = "hbase.hstore.time.to.purge.deletes"
ENDPOINT = "org.apache.hadoop.hbase.coprocessor.MultiRowMutationEndpoint"
CHANGE_TRIES = 20
CHANGE_PAUSE_MS = 200


class Schema(Protocol):
    """Tables. A change returns False if another client is changing the table."""

    def describe(self, table: bytes) -> Families | None: ...

    def create(self, table: bytes, families: Families, splits: Sequence[bytes]) -> bool: ...

    def add(self, table: bytes, name: bytes, family: Family) -> bool: ...


def make_table(
    schema: Schema, clock: Clock, table: bytes, families: Families, splits: Sequence[bytes]
) -> None:
    """Create what is missing; wait a little if another client is creating it too."""
    if not is_legal(table):
        raise InvalidRequestError("not a legal table name", table=table)
    for name, family in families.items():
        refuse_family(table, name, family)
        if family.ttl_ms is not None and family.ttl_ms % 1000:
            message = "a TTL is whole seconds in HBase"
            raise InvalidRequestError(message, family=name, ttl_ms=family.ttl_ms)
    for _ in range(len(families) + CHANGE_TRIES):
        known = schema.describe(table)
        for name, family in families.items():
            refuse_other_database(table, (known or {}).values(), family.database)
            found = (known or {}).get(name, family)
            if (found.versions, found.ttl_ms) != (family.versions, family.ttl_ms):
                facts = {"table": table, "family": name, "existing": found, "given": family}
                raise InvalidRequestError("the family exists with other settings", **facts)
            refuse_family(table, name, found)
        missing = [name for name in families if name not in (known or {})]
        if known is not None and not missing:
            return
        if known is None:
            is_done = schema.create(table, families, splits)
        else:
            is_done = schema.add(table, missing[0], families[missing[0]])
        if not is_done:
            clock.sleep_ms(CHANGE_PAUSE_MS)
    raise StoreError("others keep changing the table", table=table)


def refuse_change(table: bytes, error: Exception) -> bool:
    """Return False if another client's change caused a refusal; else raise InvalidRequestError."""
    if any(word in str(error) for word in ("xists", "oncurrent")):
        return False
    cause = first_line(error)
    raise InvalidRequestError("cannot make the table", table=table, cause=cause) from error


def refuse_family(table: bytes, name: bytes, family: Family) -> None:
    reason = find_refusal(family)
    if reason is not None:
        raise InvalidRequestError(reason, table=table, family=name)


def make_configuration(family: Family) -> dict[str, str]:
    owned = {DATABASE_ENTRY: family.database.decode()} if family.database else {}
    return {PURGE: str(family.keep_deletes_ms or PURGE_MS), **owned}


def read_family(
    versions: int,
    ttl_s: int,
    durability: str | None,
    *,
    own: Mapping[bytes, bytes],
    configured: Mapping[str, str],
    above: Mapping[bytes, bytes],
) -> Family:
    """Return a family. own, configured: its settings, which override those of its table, above."""
    name = PURGE.encode()
    return Family(
        versions=versions,
        ttl_ms=None if ttl_s == FOREVER_S else ttl_s * 1000,
        keep_deletes_ms=int(own.get(name) or configured.get(PURGE) or above.get(name) or b"0"),
        durability=durability,
        new_version_behavior=own.get(b"NEW_VERSION_BEHAVIOR", b"").lower() == b"true",
        replicas=int(above.get(b"REGION_REPLICATION", b"1")),
        database=configured.get(DATABASE_ENTRY, "").encode() or None,
    )


def make_assign_command(table: bytes, families: Iterable[bytes], database: bytes) -> str:
    entry = _write_configuration({DATABASE_ENTRY: database.decode()})
    parts = [f"{{NAME => {_quote(name)}, {entry}}}" for name in families]
    return f"alter {_quote(table)}, {', '.join(parts)}"


def make_endpoint_command(table: bytes) -> str:
    """Return the HBase shell command that lets a table name the endpoint."""
    return f"alter {_quote(table)}, METHOD => 'table_att', 'coprocessor' => '|{ENDPOINT}||'"


def _quote(value: bytes) -> str:
    """Return bytes as a string of HBase's shell, which is Ruby's; it must run nothing in them."""
    if re.fullmatch(rb"[ !-&(-\[\]-~]*", value):
        return f"'{value.decode()}'"
    return '"' + "".join(f"\\x{byte:02X}" for byte in value) + '"'


def _write_configuration(configuration: Mapping[str, str]) -> str:
    entries = (f"'{name}' => {_quote(value.encode())}" for name, value in configuration.items())
    return f"CONFIGURATION => {{{', '.join(entries)}}}"


def shell_command(verb: str, table: bytes, families: Families, splits: Sequence[bytes] = ()) -> str:
    parts = [
        f"{{NAME => {_quote(name)}, VERSIONS => {family.versions}, "
        f"{_write_configuration(make_configuration(family))}}}"
        for name, family in families.items()
    ]
    if splits:
        parts.append(f"SPLITS => [{', '.join(map(_quote, splits))}]")
    return f"{verb} {_quote(table)}, {', '.join(parts)}"
