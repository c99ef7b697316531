"""What families of HBase must be like, and the command that makes such ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txn.errors import InvalidRequestError
from txn.model import KEEP_DELETES_MS, Family, find_refusal

PURGE_MS = KEEP_DELETES_MS + 3_600_000
FOREVER_S = 2_147_483_647
PURGE = "hbase.hstore.time.to.purge.deletes"


def compare_families(
    table: bytes, known: Mapping[bytes, Family], asked: Mapping[bytes, Family]
) -> None:
    """Raise InvalidRequestError where a family that is known has not the settings asked for."""
    for name, family in asked.items():
        found = known.get(name, family)
        if (found.versions, found.ttl_ms) != (family.versions, family.ttl_ms):
            raise InvalidRequestError(
                "the family exists with other settings",
                table=table,
                family=name,
                existing=found,
                given=family,
            )
        refuse_family(table, name, found)


def refuse_family(table: bytes, name: bytes, family: Family) -> None:
    """Raise InvalidRequestError where no transaction may write to the family."""
    reason = find_refusal(family)
    if reason is not None:
        raise InvalidRequestError(reason, table=table, family=name)


def shell_command(
    verb: str, table: bytes, families: Mapping[bytes, Family], splits: Sequence[bytes] = ()
) -> str:
    """Return the command of the HBase shell that makes such a table, or adds such families."""
    parts = [
        f"{{NAME => '{name.decode()}', VERSIONS => {family.versions}, CONFIGURATION => "
        f"{{'{PURGE}' => '{family.keep_deletes_ms or PURGE_MS}'}}}}"
        for name, family in families.items()
    ]
    if splits:
        parts.append(f"SPLITS => {[split.decode() for split in splits]}")
    return f"{verb} '{table.decode()}', {', '.join(parts)}"
