"""Rows of a data frame become requests: a transaction for each row, or for each group of rows that
stand together, with its mutations, its assertions and its token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from txn.assertions import Assertion
from txn.errors import InvalidRequestError, TxnError
from txn.model import Delete, Key, Mutation
from txn.request import Request
from txn.spark.codecs.times import list_plain_values
from txn.spark.committing import make_error
from txn.spark.conditions import (
    CONDITIONS,
    Conditions,
    name_sources,
    parse_conditions,
)
from txn.spark.mapping import MAPPING, TableMapping
from txn.spark.mapping.foreign import read_outline
from txn.spark.options import SourceOptions
from txn.spark.tokens import MOST_NAME, Naming, RowTokens, make_token, name_job
from txn.text import escape

DRAFTING = (
    *MAPPING,
    *CONDITIONS,
    "nulls",
    "group_by",
    "once",
    "once_by",
    "job_id",
    "once_retention_ms",
)
"""The options that say what is written, and under which tokens."""

MOST_NAMED = 3
MOST_TOLD = 1_000
"""Rows of a group, and characters of them, in the message of an error."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row is in the data that a task was given, and its row key in the store."""

    row: bytes
    batch: pa.RecordBatch
    place: int

    def document(self) -> dict[str, Any]:
        """Return the row for a JSON document; bytes are text as everywhere in this library."""
        return {name: _describe_value(values[self.place]) for name, values in self._pairs()}

    def _pairs(self) -> Iterator[tuple[str, pa.Array]]:
        return zip(self.batch.schema.names, self.batch.columns, strict=True)


@dataclass(frozen=True, slots=True)
class Given:
    """The rows that a request is for."""

    rows: tuple[RowPlace, ...]

    def text(self) -> str:
        """Return the rows as JSON, on one line."""
        documents = [row.document() for row in self.rows]
        given = documents[0] if len(documents) == 1 else documents
        return json.dumps(given, ensure_ascii=False, default=str)

    def __repr__(self) -> str:
        """Return what an error says of the rows: how they begin, where they are long."""
        text = Given(self.rows[:MOST_NAMED]).text()
        left = len(self.rows) - MOST_NAMED
        cut = text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}..."
        return f"{cut} and {left} more" if left > 0 else cut


@dataclass(frozen=True, slots=True)
class RowDraft:
    """A row, encoded. group: the name of its group; content: all that it is made of."""

    row: RowPlace
    mutations: tuple[Mutation | Delete, ...]
    assertions: tuple[Assertion, ...]
    name: bytes | None
    group: bytes | None
    content: tuple[Any, ...]


@dataclass(frozen=True)
class Drafting:
    """How rows are made requests; it goes to the tasks. prefix: of tokens that columns name."""

    mapping: TableMapping
    conditions: Conditions
    deletes_nulls: bool
    is_once: bool
    once_by: Naming | None
    group_by: Naming | None
    prefix: bytes
    retention_ms: int | None

    def draft_requests(
        self, batches: Iterable[pa.RecordBatch], name: bytes
    ) -> Iterator[tuple[Given, Request]]:
        """Yield the requests of a task's rows. name: of the write and the partition, for tokens."""
        tokens = RowTokens(name, self._list_way())
        drafts = (draft for batch in batches for draft in self._draft_rows(batch))
        if self.group_by is None:
            for draft in drafts:
                yield self._make_request([draft], tokens)
            return
        closed: set[bytes] = set()
        for group, some in groupby(drafts, key=lambda draft: draft.group or b""):
            rows = list(some)
            if group in closed:
                raise make_error(Given((rows[0].row,)), _make_scatter_error(self.group_by))
            closed.add(group)
            yield self._make_request(rows, tokens)

    def _list_way(self) -> Collection[Any]:
        """Return what says, beside what is in a row, what is written of it and on what terms."""
        cells = [(column.family, column.qualifier) for column in self.mapping.columns]
        absent = [column.name for column in self.conditions.absent]
        terms = (absent, self.conditions.versions, self.conditions.documents)
        return (self.mapping.table, cells, self.deletes_nulls, *terms)

    def list_samples(self) -> Request:
        """Return a request such as the rows' will be, for a look at tables and families."""
        keys = [self.mapping.key_of(b"-", column) for column in self.mapping.columns]
        made: Callable[[Key], Mutation | Delete] = (
            Delete if self.deletes_nulls else lambda key: Mutation(key, b"-")
        )
        return Request(tuple(made(key) for key in keys))

    def _make_request(self, drafts: list[RowDraft], tokens: RowTokens) -> tuple[Given, Request]:
        given = Given(tuple(draft.row for draft in drafts))
        if not any(draft.mutations or draft.assertions for draft in drafts):
            raise make_error(given, _make_nothing_error())
        token = self._name_token(drafts, tokens) if self.is_once else None
        return given, Request(
            tuple(mutation for draft in drafts for mutation in draft.mutations),
            tuple(assertion for draft in drafts for assertion in draft.assertions),
            token,
            {},
            None if token is None else self.retention_ms,
        )

    def _name_token(self, drafts: list[RowDraft], tokens: RowTokens) -> bytes:
        name = drafts[0].name
        if name is not None:
            return make_token(self.prefix, name)
        if len(drafts) == 1:
            return tokens.name_row(drafts[0].content)
        return tokens.name_row(sorted(repr(draft.content) for draft in drafts))

    def _draft_rows(self, batch: pa.RecordBatch) -> Iterator[RowDraft]:
        """Yield what the rows of a record batch are. The first bad one is named."""
        try:
            yield from self._encode_batch(batch)
        except InvalidRequestError as error:
            for place in range(batch.num_rows):
                self._check_alone(batch.slice(place, 1))
            raise make_error("unknown", error) from error

    def _check_alone(self, batch: pa.RecordBatch) -> None:
        try:
            self._encode_batch(batch)
        except InvalidRequestError as error:
            raise make_error(Given((RowPlace(b"", batch, 0),)), error) from error

    def _encode_batch(self, batch: pa.RecordBatch) -> list[RowDraft]:
        mapping, conditions = self.mapping, self.conditions
        rows = mapping.encode_rows(batch)
        columns = [
            (column, column.encode_array(batch.column(column.place))) for column in mapping.columns
        ]
        inputs = conditions.list_inputs(batch)
        nothing: list[bytes | None] = [None] * len(rows)
        names = self.once_by.list_values(batch) if self.once_by else nothing
        groups = self.group_by.list_values(batch) if self.group_by else nothing
        found = []
        for place, row in enumerate(rows):
            cells = [(mapping.key_of(row, column), cells[place]) for column, cells in columns]
            mutations = tuple(self._list_mutations(cells))
            written = [mutation.key for mutation in mutations]
            found.append(
                RowDraft(
                    RowPlace(row, batch, place),
                    mutations,
                    conditions.list_assertions(mapping, row, written, inputs[place]),
                    names[place],
                    groups[place],
                    (row, *(cell for _, cell in cells), *inputs[place]),
                )
            )
        return found

    def _list_mutations(
        self, cells: Collection[tuple[Key, bytes | None]]
    ) -> Iterator[Mutation | Delete]:
        for key, cell in cells:
            if cell is not None:
                yield Mutation(key, cell)
            elif self.deletes_nulls:
                yield Delete(key)


def parse_drafting(
    options: SourceOptions, schema: StructType, retention_ms: int | None = None
) -> Drafting:
    """Return how the options want rows to be written; InvalidRequestError where they do not fit
    each other or the schema. retention_ms: of tokens that no column names, where none is given."""
    once_by, group_by = options.names("once_by"), options.names("group_by")
    sources = name_sources(options)
    mapped = _name_mapped(options, schema, sources)
    besides = [*sources, *(name for name in [*once_by, *group_by] if name not in mapped)]
    mapping = TableMapping.parse(options, schema, besides)
    is_once = options.flag("once", True)
    _check_once(options, is_once, once_by, group_by)
    if options.text("once_retention_ms") is not None:
        retention_ms = options.whole("once_retention_ms", 1)
    elif once_by:
        retention_ms = None
    return Drafting(
        mapping,
        parse_conditions(options, mapping, schema),
        options.choice("nulls", ("leave", "delete"), "leave") == "delete",
        is_once,
        Naming.parse("once_by", once_by, schema) if once_by else None,
        Naming.parse("group_by", group_by, schema) if group_by else None,
        name_job((options.text("job_id") or "").encode(), mapping.table),
        retention_ms if is_once else None,
    )


def _name_mapped(options: SourceOptions, schema: StructType, sources: list[str]) -> set[str]:
    """Return the columns that the mapping names itself; none of them may be a source as well."""
    outline = read_outline(options, schema)
    mapped = {sketch.name for sketch in [*outline.row, *outline.columns]}
    both = sorted(mapped.intersection(sources))
    if both and (not options.text("family") or {s.name for s in outline.row}.intersection(both)):
        raise InvalidRequestError(
            "a column that has timestamps or assertions cannot be a cell as well", columns=both
        )
    return mapped


def _check_once(
    options: SourceOptions, is_once: bool, once_by: list[str], group_by: list[str]
) -> None:
    given = [n for n in ("once_by", "job_id", "once_retention_ms") if options.text(n) is not None]
    if len((options.text("job_id") or "").encode()) > MOST_NAME:
        raise InvalidRequestError("a name is too long", option="job_id", limit=MOST_NAME)
    if not is_once and given:
        raise InvalidRequestError("options exclude each other", options=["once=false", *given])
    if group_by and (others := [name for name in once_by if name not in group_by]):
        raise InvalidRequestError(
            "a group has one token: once_by must be of columns of group_by", columns=others
        )


def _describe_value(value: pa.Scalar) -> Any:
    try:
        found = value.as_py()
    except (OverflowError, ValueError):  # Python has no such date or time, and Arrow has
        if pa.types.is_nested(value.type):
            return list_plain_values(pa.array([value], value.type))[0]
        return str(value.cast(pa.string()))
    return escape(found) if isinstance(found, bytes) else found


def _make_nothing_error() -> TxnError:
    return InvalidRequestError(
        "a row has only nulls in its cells, and writes nothing: leave it out, or say nulls=delete"
    )


def _make_scatter_error(group_by: Naming) -> TxnError:
    columns = ", ".join(group_by.names)
    return InvalidRequestError(
        "the rows of a group do not stand together: repartition by its columns, and sort by them "
        "within partitions",
        group_by=columns,
    )
