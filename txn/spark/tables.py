"""`option("newTable", REGIONS)`: create the tables of a write that are missing, before any task."""

from __future__ import annotations

from dataclasses import dataclass

from txn.client.engine import Engine
from txn.errors import InvalidRequestError
from txn.model import Family, plain_table
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions, split_list
from txn.text import unescape

NEW_TABLE = ("newTable", "splitKeys", "versions")


@dataclass(frozen=True)
class NewTables:
    """How missing tables are created. splits: the first row keys of all regions but the first, in
    the table of the mapping's main row; another table has one region."""

    splits: tuple[bytes, ...]
    versions: int

    @classmethod
    def parse(cls, options: SourceOptions) -> NewTables | None:
        """Return what the options say, or None without `newTable`."""
        regions = options.whole("newTable", None)
        text = options.text("splitKeys")
        given = [name for name in NEW_TABLE if options.text(name) is not None]
        if regions is None and given:
            raise InvalidRequestError("an option goes with newTable only", options=given)
        if regions is None:
            return None
        splits = [unescape(key.strip()) for key in split_list(text)] if text else []
        if len(splits) != regions - 1 or splits != sorted(set(splits)) or b"" in splits:
            raise InvalidRequestError(
                "splitKeys are the first row keys of all regions but the first, in order: "
                "newTable=1 needs none, newTable=3 two",
                newTable=regions,
                splitKeys=splits,
            )
        return cls(tuple(splits), options.whole("versions", Family().versions))

    def create(self, engine: Engine, mapping: TableMapping) -> None:
        """Create the tables of the mapping that are missing; existing ones stay as they are."""
        store, database = engine.context.store, plain_table(engine.context.table)
        family = Family(self.versions, database=database)
        for table in dict.fromkeys(row.table for row in mapping.rows):
            names = [c.family for row in mapping.rows if row.table == table for c in row.columns]
            if store.describe(table) is None:
                splits = self.splits if table == mapping.table else ()
                store.ensure_table(table, dict.fromkeys(names, family), splits)
