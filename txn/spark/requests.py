"""Rows of a data frame become requests: a transaction for each row, or for each group of rows that
stand together, with its mutations, its assertions and its `once` token.

By its token a task that runs again changes nothing. With the option `onceBy` it is made of the
table, of the job where it has a name, and of columns: it names what happens, and no other row may
have it. Without, it is made of the name of the write, of the partition, and of all that the row is;
of rows of a partition that are equal each has a number. So it does not matter in which order a
partition comes when its task runs again; only which rows are in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.types import NumericType, StructType

from txn.assertions import Assertion
from txn.errors import InvalidRequestError
from txn.model import Delete, Key, Mutation
from txn.request import MAX_TOKEN, Request
from txn.spark.codecs import Codec, make_codec, name_codec
from txn.spark.codecs.times import list_plain_values
from txn.spark.conditions import CONDITIONS, Conditions
from txn.spark.definitions import MAPPING, read_definition
from txn.spark.mapping import TableMapping
from txn.spark.options import SourceOptions
from txn.spark.partitions import make_error
from txn.text import escape

REQUESTS = (
    *MAPPING,
    *CONDITIONS,
    "nulls",
    "groupBy",
    "once",
    "onceBy",
    "jobId",
    "onceRetentionMs",
)
"""The options that say what is written, and under which tokens."""

MAX_ROWS_NAMED = 3
MAX_ROW_TEXT = 1_000
"""Rows of a group, and characters of them, in the message of an error."""

DIGEST_BYTES = 16
MAX_JOB_NAME = MAX_TOKEN - 100
"""Bytes of the name of a job: a partition, a digest and a number follow it."""
READABLE_BYTES = 100
"""Bytes that people see of a token that would be too long."""


# ----------------------------------------------------------------------------------------- tokens


@dataclass(frozen=True)
class Naming:
    """Columns whose values together name something, as text that no other values make."""

    names: tuple[str, ...]
    codecs: tuple[Codec, ...]

    @classmethod
    def parse(cls, option: str, names: Sequence[str], schema: StructType) -> Naming:
        """Return the naming by these columns, or raise InvalidRequestError."""
        for name in names:
            if name not in schema.names:
                raise InvalidRequestError("an option names no column", option=option, column=name)
        return cls(tuple(names), tuple(_choose_codec(name, schema) for name in names))

    def list_values(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the name of each row of a batch; InvalidRequestError where a value is null."""
        columns = []
        for name, codec in zip(self.names, self.codecs, strict=True):
            values = codec.encode_array(batch.column(batch.schema.get_field_index(name)))
            if None in values:
                raise InvalidRequestError("a column that names a transaction is null", column=name)
            columns.append([_escape_slashes(value) for value in values if value is not None])
        return [b"/".join(parts) for parts in zip(*columns, strict=True)]


class RowTokens:
    """The tokens of one task, made of what each row is: rows that are equal are told apart.

    target: what is made of a row that has these parts, such as where it is written: one job may do
    several things with one data frame. It keeps 8 bytes of each row's digest, which take about
    70 as Python has them.
    """

    def __init__(self, prefix: bytes, target: Collection[Any]) -> None:
        self._prefix = prefix
        self._target = blake2b(repr(target).encode(), digest_size=DIGEST_BYTES)
        self._seen: set[int] = set()
        self._repeated: Counter[int] = Counter()

    def make_token(self, parts: Collection[Any]) -> bytes:
        """Return the token of a row that is made of these parts."""
        digest = self._target.copy()
        digest.update(repr(parts).encode())
        short = int.from_bytes(digest.digest()[:8])
        token = b"%s/%s" % (self._prefix, digest.hexdigest().encode())
        if short not in self._seen:
            self._seen.add(short)
            return token
        self._repeated[short] += 1
        return b"%s/%d" % (token, self._repeated[short])


def name_job(job: bytes, table: bytes) -> bytes:
    """Return the name of all that a job writes to a table, or, where the job has none, of all that
    anybody does. No other job or table has it: only that of a job has a slash in front."""
    table = _escape_slashes(table)
    return b"/%s/%s" % (_escape_slashes(job), table) if job else table


def make_token(*names: bytes) -> bytes:
    """Return the token of names of which each is within the one before it, however long they are:
    that of a job, then that which the values of columns make. A long one has a digest instead,
    behind two slashes, with which no other token begins."""
    token = b"/".join(names)
    if len(token) <= MAX_TOKEN:
        return token
    digest = blake2b(token, digest_size=32).hexdigest().encode()
    return b"//%s/%s" % (digest, token[:READABLE_BYTES])


def _choose_codec(name: str, schema: StructType) -> Codec:
    """Numbers as text: tokens are read by people."""
    kind = schema[name].dataType
    codec = "text" if isinstance(kind, NumericType) else name_codec(kind, name)
    return make_codec(codec, kind, name)


def _escape_slashes(name: bytes) -> bytes:
    """Return a name in which no slash is taken for its end."""
    return name.replace(b"\\", rb"\\").replace(b"/", rb"\/")


# --------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Where a row is in the data that a task was given, and its row key in the store."""

    row: bytes
    batch: pa.RecordBatch
    place: int

    def document(self) -> dict[str, Any]:
        """Return the row for a JSON document; bytes are text as everywhere in this library."""
        columns = zip(self.batch.schema.names, self.batch.columns, strict=True)
        return {name: _describe_value(values[self.place]) for name, values in columns}


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows that a request is for."""

    rows: tuple[SourceRow, ...]

    def text(self) -> str:
        """Return the rows as JSON, on one line."""
        documents = [row.document() for row in self.rows]
        content = documents[0] if len(documents) == 1 else documents
        return json.dumps(content, ensure_ascii=False, default=str)

    def __repr__(self) -> str:
        """Return what an error says of the rows: how they begin, where they are long."""
        text = SourceRows(self.rows[:MAX_ROWS_NAMED]).text()
        left = len(self.rows) - MAX_ROWS_NAMED
        cut = text if len(text) <= MAX_ROW_TEXT else f"{text[:MAX_ROW_TEXT]}..."
        return f"{cut} and {left} more" if left > 0 else cut


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row, encoded. name: of its token, from columns; group: the name of its group; content: all
    that it is made of."""

    source: SourceRow
    mutations: tuple[Mutation | Delete, ...]
    assertions: tuple[Assertion, ...]
    name: bytes | None
    group: bytes | None
    content: tuple[Any, ...]


@dataclass(frozen=True)
class RequestBuilder:
    """Makes requests of rows; it goes to the tasks. prefix: of tokens that columns name."""

    mapping: TableMapping
    conditions: Conditions
    deletes_nulls: bool
    is_once: bool
    once_by: Naming | None
    group_by: Naming | None
    prefix: bytes
    retention_ms: int | None

    def build_requests(
        self, batches: Iterable[pa.RecordBatch], name: bytes
    ) -> Iterator[tuple[SourceRows, Request]]:
        """Yield the requests of a task's rows. name: of the write and the partition, for tokens."""
        tokens = RowTokens(name, self._list_targets())
        rows = (row for batch in batches for row in self._encode_rows(batch))
        if self.group_by is None:
            for row in rows:
                yield self._build_request([row], tokens)
            return
        closed: set[bytes] = set()
        for group, members in groupby(rows, key=lambda row: row.group or b""):
            some = list(members)
            if group in closed:
                error = InvalidRequestError(
                    "the rows of a group do not stand together: repartition by its columns, and "
                    "sort by them within partitions",
                    group_by=", ".join(self.group_by.names),
                )
                raise make_error(SourceRows((some[0].source,)), error)
            closed.add(group)
            yield self._build_request(some, tokens)

    def sample_request(self) -> Request:
        """Return a request such as the rows' will be, to check tables and families with."""
        keys = [self.mapping.key_of(b"-", column) for column in self.mapping.columns]
        return Request(
            tuple(Delete(key) if self.deletes_nulls else Mutation(key, b"-") for key in keys)
        )

    def _list_targets(self) -> Collection[Any]:
        """Return what says, beside what is in a row, what is written of it and on what terms."""
        cells = [(column.family, column.qualifier) for column in self.mapping.columns]
        terms = self.conditions
        conditions = (terms.absent, terms.versions, terms.documents)
        return (self.mapping.table, cells, self.deletes_nulls, *conditions)

    def _build_request(
        self, rows: list[EncodedRow], tokens: RowTokens
    ) -> tuple[SourceRows, Request]:
        sources = SourceRows(tuple(row.source for row in rows))
        if not any(row.mutations or row.assertions for row in rows):
            error = InvalidRequestError(
                "a row has only nulls in its cells, and writes nothing: leave it out, or say "
                "nulls=delete"
            )
            raise make_error(sources, error)
        return sources, Request(
            tuple(mutation for row in rows for mutation in row.mutations),
            tuple(assertion for row in rows for assertion in row.assertions),
            self._make_token(rows, tokens) if self.is_once else None,
            {},
            self.retention_ms,
        )

    def _make_token(self, rows: list[EncodedRow], tokens: RowTokens) -> bytes:
        name = rows[0].name
        if name is not None:
            return make_token(self.prefix, name)
        if len(rows) == 1:
            return tokens.make_token(rows[0].content)
        return tokens.make_token(sorted(repr(row.content) for row in rows))

    def _encode_rows(self, batch: pa.RecordBatch) -> Iterator[EncodedRow]:
        """Yield the rows of a record batch. The first bad one is named."""
        try:
            yield from self._encode_batch(batch)
        except InvalidRequestError as error:
            for place in range(batch.num_rows):
                self._check_row(batch.slice(place, 1))
            raise make_error("unknown", error) from error

    def _check_row(self, batch: pa.RecordBatch) -> None:
        try:
            self._encode_batch(batch)
        except InvalidRequestError as error:
            raise make_error(SourceRows((SourceRow(b"", batch, 0),)), error) from error

    def _encode_batch(self, batch: pa.RecordBatch) -> list[EncodedRow]:
        mapping, conditions = self.mapping, self.conditions
        rows = mapping.encode_rows(batch)
        columns = [
            (column, column.encode_array(batch.column(column.place))) for column in mapping.columns
        ]
        inputs = conditions.list_inputs(batch)
        nothing: list[bytes | None] = [None] * len(rows)
        names = self.once_by.list_values(batch) if self.once_by else nothing
        groups = self.group_by.list_values(batch) if self.group_by else nothing
        encoded = []
        for place, row in enumerate(rows):
            cells = [(mapping.key_of(row, column), cells[place]) for column, cells in columns]
            mutations = tuple(self._list_mutations(cells))
            written = [mutation.key for mutation in mutations]
            encoded.append(
                EncodedRow(
                    SourceRow(row, batch, place),
                    mutations,
                    conditions.list_assertions(mapping, row, written, inputs[place]),
                    names[place],
                    groups[place],
                    (row, *(cell for _, cell in cells), *inputs[place]),
                )
            )
        return encoded

    def _list_mutations(
        self, cells: Collection[tuple[Key, bytes | None]]
    ) -> Iterator[Mutation | Delete]:
        for key, cell in cells:
            if cell is not None:
                yield Mutation(key, cell)
            elif self.deletes_nulls:
                yield Delete(key)


def parse_requests(
    options: SourceOptions, schema: StructType, retention_ms: int | None = None
) -> RequestBuilder:
    """Return how the options want rows to be written; InvalidRequestError where they do not fit
    each other or the schema. retention_ms: of tokens that no column names, where none is given."""
    once_by, group_by = options.names("onceBy"), options.names("groupBy")
    is_once = options.flag("once", True)
    _check_once(options, is_once, once_by, group_by)
    conditions = Conditions.parse(options, schema)
    mapping = _parse_mapping(options, schema, conditions.sources, [*once_by, *group_by])
    conditions.check(mapping)
    retention_ms = options.whole("onceRetentionMs", None if once_by else retention_ms)
    return RequestBuilder(
        mapping,
        conditions,
        options.choice("nulls", ("leave", "delete"), "leave") == "delete",
        is_once,
        Naming.parse("onceBy", once_by, schema) if once_by else None,
        Naming.parse("groupBy", group_by, schema) if group_by else None,
        name_job((options.text("jobId") or "").encode(), mapping.table),
        retention_ms if is_once else None,
    )


def _parse_mapping(
    options: SourceOptions, schema: StructType, sources: list[str], naming: list[str]
) -> TableMapping:
    """Return the mapping of a write. Columns that have timestamps or assertions are no cells, nor
    are those that name something, unless the mapping names them too."""
    definition = read_definition(options, schema)
    row = {column.name for column in definition.row}
    mapped = row | {column.name for column in definition.columns}
    both = sorted(mapped.intersection(sources))
    if both and (not options.text("family") or row.intersection(both)):
        raise InvalidRequestError(
            "a column that has timestamps or assertions cannot be a cell as well", columns=both
        )
    others = [*sources, *(name for name in naming if name not in mapped)]
    return TableMapping.of(definition, schema, others)


def _check_once(
    options: SourceOptions, is_once: bool, once_by: list[str], group_by: list[str]
) -> None:
    given = [n for n in ("onceBy", "jobId", "onceRetentionMs") if options.text(n) is not None]
    if len((options.text("jobId") or "").encode()) > MAX_JOB_NAME:
        raise InvalidRequestError("a name is too long", option="jobId", limit=MAX_JOB_NAME)
    if not is_once and given:
        raise InvalidRequestError("options exclude each other", options=["once=false", *given])
    if group_by and (others := [name for name in once_by if name not in group_by]):
        raise InvalidRequestError(
            "a group has one token: onceBy must be of columns of groupBy", columns=others
        )


def _describe_value(value: pa.Scalar) -> Any:
    try:
        found = value.as_py()
    except (OverflowError, ValueError):  # Python has no such date or time, and Arrow has
        if pa.types.is_nested(value.type):
            return list_plain_values(pa.array([value], value.type))[0]
        return str(value.cast(pa.string()))
    return escape(found) if isinstance(found, bytes) else found
