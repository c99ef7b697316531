"""Rows of a data frame become requests: mutations, assertions and a `once` token.

Each row is a transaction, or each group of adjacent rows. Because of the token, a task that runs
again changes nothing. With `onceBy` the token consists of the table, the name of the job if it has
one, and the values of columns; no other row may have the same. Without `onceBy` it consists of the
name of the write, the partition and the whole content of the row; equal rows of a partition are
numbered. So a task that runs again may get its rows in another order, but must get the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from hashlib import blake2b
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types

from txn.assertions import MAX_DEPTH, Assertion, Not, Some, Version
from txn.documents import AssertionReader, parse_assertions, read_bytes, read_key
from txn.errors import InvalidRequestError
from txn.model import Delete, Key, Mutation, new_tuple
from txn.request import Request
from txn.spark.codecs import Cells, Codec, make_codec, name_codec
from txn.spark.definitions import MAPPING
from txn.spark.mapping import MappedColumn, TableMapping
from txn.spark.options import SourceOptions, match_name, parse_name, split_list, split_names
from txn.spark.partitions import SPLIT, make_error
from txn.spark.texts import list_plain_values
from txn.spark.tokens import DIGEST_BYTES, escape_slashes, make_token, name_scope
from txn.text import escape

CONDITIONS = ("ifAbsent", "ifVersion", "assertions")
REQUESTS = (
    *(*MAPPING, *CONDITIONS, "nulls", "empty", "groupBy"),
    *("once", "onceBy", "jobId", "onceRetentionMs", "validate"),
)

ALL = ""
"""Stands for all cells that a row writes, where `ifVersion` names no column."""

MAX_ROWS_NAMED = 3
MAX_ROW_TEXT = 1_000
"""The most rows of a group, and characters of them, in an error message."""


class Naming(NamedTuple):
    """Columns whose values together name something, as a text that is unique to those values."""

    names: tuple[str, ...]
    codecs: tuple[Codec, ...]

    @classmethod
    def parse(cls, option: str, names: Sequence[str], schema: types.StructType) -> Naming:
        codecs = []
        for name in names:
            kind = _find_type(option, schema, name)
            # The default codec, but text for numbers: people read tokens.
            codec = "text" if isinstance(kind, types.NumericType) else name_codec(kind, name)
            codecs.append(make_codec(codec, kind, name))
        return cls(tuple(names), tuple(codecs))

    def list_values(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the name of each row of a batch, or raise InvalidRequestError for a null value."""
        columns = []
        for name, codec in zip(self.names, self.codecs, strict=True):
            values = codec.encode_array(batch.column(batch.schema.get_field_index(name)))
            if None in values:
                raise InvalidRequestError("a column that names a transaction is null", column=name)
            columns.append([escape_slashes(value) for value in values if value is not None])
        return [b"/".join(parts) for parts in zip(*columns, strict=True)]


class RowTokens:
    """The tokens of one task, made of the content of each row; equal rows get different tokens.

    target: what is written of a row, such as its cells: one job may write one data frame in several
    ways. Each row costs 8 bytes of digest, about 70 as a Python object.
    """

    def __init__(self, prefix: bytes, target: Collection[Any]) -> None:
        self._prefix = prefix
        self._target = blake2b(repr(target).encode(), digest_size=DIGEST_BYTES)
        self._seen: dict[int, int] = {}

    def make_content(self, rows: Sequence[EncodedRow]) -> bytes:
        """Return the digest of what is written of a row, or of a group in any order."""
        texts = [repr(row.content) for row in rows]
        digest = self._target.copy()
        digest.update((texts[0] if len(texts) == 1 else repr(sorted(texts))).encode())
        return digest.digest()

    def make_token(self, content: bytes) -> bytes:
        short = int.from_bytes(content[:8])
        repeated = self._seen.get(short, 0)
        self._seen[short] = repeated + 1
        number = (b"%d" % repeated,) if repeated else ()
        return make_token(self._prefix, content.hex().encode(), *number)


@dataclass(frozen=True)
class Conditions:
    """The assertions of rows. absent: columns whose cells must be absent; None: all cells.
    versions: pairs of a mapped column, or ALL, and its timestamp. documents: of assertions."""

    absent: tuple[str, ...] | None = ()
    versions: tuple[tuple[str, str], ...] = ()
    documents: str | None = None

    @classmethod
    def parse(cls, options: SourceOptions, schema: types.StructType) -> Conditions:
        versions = _parse_versions(options.text("ifVersion"), schema.names)
        whole = (types.LongType, types.IntegerType)
        for _, source in versions:
            _check_type("ifVersion", schema, source, whole, "a timestamp in ms")
        documents = match_name(parse_name(options.text("assertions") or ""), schema.names) or None
        if documents is not None:
            kinds = (types.StringType, types.ArrayType, types.StructType)
            _check_type("assertions", schema, documents, kinds, "JSON text, or an array of structs")
        absent = options.text("ifAbsent", "false") or "false"
        if absent.lower() in ("true", "false"):
            return cls(None if absent.lower() == "true" else (), versions, documents)
        return cls(tuple(split_names(absent)), versions, documents)

    @property
    def sources(self) -> list[str]:
        """Return the columns that have timestamps or assertions, which are not cells."""
        documents = [self.documents] if self.documents else []
        return [*(source for _, source in self.versions), *documents]

    def check(self, mapping: TableMapping) -> None:
        for name in [*(self.absent or ()), *(name for name, _ in self.versions if name != ALL)]:
            mapping.find_column(name)

    def list_inputs(self, batch: pa.RecordBatch) -> list[list[Any]]:
        """Return the columns from whose values the assertions of a batch's rows are built."""
        inputs = []
        for name in self.sources:
            try:
                inputs.append(batch.column(batch.schema.get_field_index(name)).to_pylist())
            except (OverflowError, ValueError) as error:
                problem = "a time is not of the years 1 to 9999"
                raise InvalidRequestError(problem, column=name) from error
        return inputs

    def list_assertions(
        self, mapping: TableMapping, row: bytes, written: Sequence[Key], inputs: Sequence[Any]
    ) -> tuple[Assertion, ...]:
        """Return the assertions of a row. written: its written keys; inputs: from `list_inputs`."""
        absent = mapping.columns if self.absent is None else map(mapping.find_column, self.absent)
        found: list[Assertion] = [Not(Some(mapping.key_of(row, column))) for column in absent]
        for (name, source), timestamp in zip(self.versions, inputs, strict=False):
            keys = written if name == ALL else [mapping.key_of(row, mapping.find_column(name))]
            found += (Version(key, timestamp) for key in keys)
            if timestamp is not None and timestamp < 1:
                problem = "a version is a timestamp in ms, or null"
                raise InvalidRequestError(problem, column=source, given=timestamp)
        if self.documents is not None and inputs[-1] is not None:
            found += _read_documents(mapping, row, self.documents, inputs[-1])
        return tuple(found)


def _parse_versions(text: str | None, names: Collection[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(str.strip, split_list(text or "")):
        name, equals, source = part.rpartition("=")
        if equals and not name.strip():
            raise InvalidRequestError("an option is malformed", option="ifVersion", part=part)
        pairs.append((parse_name(name) or ALL, match_name(parse_name(source), names)))
    if len(pairs) > 1 and any(name == ALL for name, _ in pairs):
        problem = "ifVersion is one column, or pairs such as balance=seen"
        raise InvalidRequestError(problem, if_version=text)
    return tuple(pairs)


def _check_type(
    option: str, schema: types.StructType, name: str, kinds: tuple[type, ...], wanted: str
) -> None:
    kind = _find_type(option, schema, name)
    if not isinstance(kind, kinds):
        problem = "a column has a type that does not fit"
        raise InvalidRequestError(
            problem, option=option, column=name, type=kind.simpleString(), wanted=wanted
        )


def _find_type(option: str, schema: types.StructType, name: str) -> types.DataType:
    if name not in schema.names:
        raise InvalidRequestError("an option names no column", option=option, column=name)
    return schema[name].dataType


def _read_documents(
    mapping: TableMapping, row: bytes, place: str, given: Any
) -> Iterator[Assertion]:
    columns = {column.name: column for column in mapping.columns}

    def find_column(key: object) -> MappedColumn | None:
        return columns.get(match_name(key, columns)) if isinstance(key, str) else None

    def find_key(key: object, where: str) -> Key:
        column = find_column(key)
        return read_key(key, where) if column is None else mapping.key_of(row, column)

    def find_value(key: object, value: object, where: str) -> bytes:
        column = None if isinstance(value, dict) else find_column(key)
        return read_bytes(value, where) if column is None else column.encode(value)

    items = _load(given, place)
    try:
        yield from parse_assertions(items, place, AssertionReader(find_key, find_value))
    except (InvalidRequestError, UnicodeEncodeError) as error:
        if not isinstance(error.__cause__ or error, UnicodeEncodeError):
            raise
        problem = "a text has half of a surrogate pair, and no UTF-8"
        raise InvalidRequestError(problem, column=place) from error


def _load(given: Any, place: str) -> list[Any]:
    """Return the list of documents in a text, a struct or an array of structs. A struct has all
    fields of its type, so null fields are dropped, except a timestamp."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidRequestError("not JSON", column=place, why=str(error)) from error
        except RecursionError as error:
            raise InvalidRequestError("nested too deeply", limit=MAX_DEPTH) from error
        return given if isinstance(given, list) else [given]
    return [_drop_nulls(item) for item in (given if isinstance(given, list) else [given])]


def _drop_nulls(item: Any) -> Any:
    if isinstance(item, list):
        return [_drop_nulls(part) for part in item]
    if not isinstance(item, dict):
        return item
    kept = {name: _drop_nulls(part) for name, part in item.items() if part is not None}
    return {**kept, "timestamp": item.get("timestamp")} if "version" in kept else kept


class SourceRow(NamedTuple):
    """The place of a row in a task's data, and its row key in the store."""

    row: bytes
    batch: pa.RecordBatch
    place: int


class SourceRows(tuple[SourceRow, ...]):
    """The rows of a request, for rejects and error messages."""

    def text(self) -> str:
        documents = [
            {name: _describe_value(batch.column(name)[place]) for name in batch.schema.names}
            for _, batch, place in self
        ]
        content = documents[0] if len(documents) == 1 else documents
        return json.dumps(content, ensure_ascii=False, default=str)

    def __repr__(self) -> str:
        text = SourceRows(self[:MAX_ROWS_NAMED]).text()
        left = len(self) - MAX_ROWS_NAMED
        cut = text if len(text) <= MAX_ROW_TEXT else f"{text[:MAX_ROW_TEXT]}..."
        return f"{cut} and {left} more" if left > 0 else cut


class EncodedRow(NamedTuple):
    """An encoded row. name: for its token, from columns; group: the name of its group; content: all
    values that it consists of; error: why it does not encode."""

    source: SourceRow
    mutations: tuple[Mutation | Delete, ...]
    name: bytes | None
    group: bytes | None
    assertions: tuple[Assertion, ...]
    content: tuple[Any, ...]
    error: InvalidRequestError | None = None


Reject = Callable[[SourceRows, Request, InvalidRequestError], None]
"""Takes the rows of a request that cannot be made, a request with its token alone, and the reason.
"""


class RequestBuilder(NamedTuple):
    """Build requests from rows; sent to the tasks. prefix: of tokens that columns name."""

    mapping: TableMapping
    conditions: Conditions
    deletes_nulls: bool
    is_once: bool
    once_by: Naming | None
    group_by: Naming | None
    prefix: bytes
    retention_ms: int | None
    validate: bool | None = None

    def build_requests(
        self, batches: Iterable[pa.RecordBatch], name: bytes, reject: Reject | None = None
    ) -> Iterator[tuple[SourceRows, Request]]:
        """Yield the requests of a task. name: of the write and the partition, for tokens. reject:
        is called for rows that do not encode; without it they raise PartitionError."""
        tokens = RowTokens(name, self._list_targets())
        rows = (row for batch in batches for row in self._encode_rows(batch, reject is not None))
        for some in self._list_groups(rows):
            sources = SourceRows([row.source for row in some])
            error = _find_error(some)
            made = some if error is None else []
            token = content = None
            if self.is_once:
                content = tokens.make_content(some)
                # Rows that do not encode may come again with other values of `onceBy`.
                if made and (given := some[0].name) is not None:
                    token = make_token(self.prefix, given)
                else:
                    token = tokens.make_token(content)
            mutations = tuple(chain.from_iterable([row.mutations for row in made]))
            assertions = tuple(chain.from_iterable([row.assertions for row in made]))
            request = Request(
                mutations, assertions, token, {}, self.retention_ms, self.validate, content
            )
            if error is None:
                yield sources, request
            elif reject is None:
                raise make_error(sources, error)
            else:
                reject(sources, request, error)

    def _list_groups(self, rows: Iterator[EncodedRow]) -> Iterator[list[EncodedRow]]:
        if self.group_by is None:
            yield from ([row] for row in rows)
            return
        closed = set()
        for group, members in groupby(rows, key=lambda row: row.group):
            some = list(members)
            if group is None:
                yield from ([row] for row in some)
            elif group in closed:
                error = InvalidRequestError(SPLIT, group_by=", ".join(self.group_by.names))
                raise make_error(SourceRows([some[0].source]), error)
            else:
                closed.add(group)
                yield some

    def sample_request(self) -> Request:
        """Return a request like those of the rows, to check tables and families."""
        keys = [row.key_of(b"-", column) for row in self.mapping.rows for column in row.columns]
        return Request(
            tuple(Delete(key) if self.deletes_nulls else Mutation(key, b"-") for key in keys)
        )

    def _list_targets(self) -> Collection[Any]:
        """Return what defines a row's write beside its content: table, cells and conditions."""
        cells = [(column.family, column.qualifier) for column in self.mapping.columns]
        others = [
            (row.table, row.separator, [part.name for part in row.row], *place)
            for row in self.mapping.other_rows
            for place in ((column.family, column.qualifier) for column in row.columns)
        ]
        return (self.mapping.table, cells, self.deletes_nulls, *astuple(self.conditions), *others)

    def _encode_rows(self, batch: pa.RecordBatch, can_reject: bool) -> Iterable[EncodedRow]:
        """Encode a batch, or its halves if a row does not encode, down to that row."""
        try:
            return self._encode_batch(batch)
        except InvalidRequestError as error:
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                parts = (batch.slice(0, half), batch.slice(half))
                return [row for part in parts for row in self._encode_rows(part, can_reject)]
            source, group = SourceRow(b"", batch, 0), None
            if not can_reject:
                raise make_error(SourceRows([source]), error) from error
            with suppress(InvalidRequestError):
                source = SourceRow(self.mapping.encode_rows(batch)[0], batch, 0)
            with suppress(InvalidRequestError):
                group = self.group_by.list_values(batch)[0] if self.group_by else None
            content = (SourceRows([source]).text(),)
            return [EncodedRow(source, (), None, group, (), content, error)]

    def _encode_batch(self, batch: pa.RecordBatch) -> Iterator[EncodedRow]:
        (rows, cells, mutations), *others = (
            self._encode_targets(row, batch) for row in self.mapping.rows
        )
        inputs = self.conditions.list_inputs(batch)
        assertions: Iterable[tuple[Assertion, ...]] = repeat((), len(rows))
        if self.conditions != Conditions():
            given = zip(*inputs, strict=True) if inputs else repeat((), len(rows))
            assertions = [
                self.conditions.list_assertions(self.mapping, row, [m.key for m in each], values)
                for row, each, values in zip(rows, mutations, given, strict=True)
            ]
        contents = [rows, *cells, *inputs]
        for keys, more, changes in others:
            contents += [keys, *more]
            mutations = [one + other for one, other in zip(mutations, changes, strict=True)]
        columns = (
            map(SourceRow, rows, repeat(batch), range(len(rows))),
            mutations,
            self.once_by.list_values(batch) if self.once_by else repeat(None, len(rows)),
            self.group_by.list_values(batch) if self.group_by else repeat(None, len(rows)),
            assertions,
            zip(*contents, strict=True),
            repeat(None, len(rows)),
        )
        return (new_tuple(EncodedRow, fields) for fields in zip(*columns, strict=True))

    def _encode_targets(
        self, mapping: TableMapping, batch: pa.RecordBatch
    ) -> tuple[list[bytes], Sequence[Cells], list[tuple[Mutation | Delete, ...]]]:
        """Return the row keys, the cells by columns, and the mutations of each row."""
        rows = mapping.encode_rows(batch)
        cells = [column.encode_array(batch.column(column.place)) for column in mapping.columns]
        absent = Delete if self.deletes_nulls else lambda _: None  # the cell is left alone
        changes = []
        for column, values in zip(mapping.columns, cells, strict=True):
            place = (column.family, column.qualifier, mapping.table)
            keys = [new_tuple(Key, (row, *place)) for row in rows]
            changes.append(
                [
                    absent(key) if cell is None else Mutation(key, cell)
                    for key, cell in zip(keys, values, strict=True)
                ]
            )
        by_row = zip(*changes, strict=True) if changes else repeat((), len(rows))
        return rows, cells, [tuple(filter(None, each)) for each in by_row]


def _find_error(rows: list[EncodedRow]) -> InvalidRequestError | None:
    for row in rows:
        if row.error is not None:
            return row.error
    if not any(row.mutations or row.assertions for row in rows):
        return InvalidRequestError(
            "a row has only nulls in its cells, and writes nothing: leave it out, or say "
            "nulls=delete"
        )
    keys = [mutation.key for row in rows for mutation in row.mutations]
    if len(set(keys)) < len(keys):
        key = next(key for key in keys if keys.count(key) > 1)
        return InvalidRequestError("a transaction writes a cell twice", key=key)
    return None


def parse_requests(
    options: SourceOptions, schema: types.StructType, retention_ms: int | None = None
) -> RequestBuilder:
    """Return the builder that the options define. Raise InvalidRequestError if they do not fit each
    other or the schema. retention_ms: the default for tokens that no column names."""
    once_by, group_by = (
        [match_name(name, schema.names) for name in options.names(option)]
        for option in ("onceBy", "groupBy")
    )
    is_once = options.flag("once", True)
    given = [n for n in ("onceBy", "jobId", "onceRetentionMs") if options.text(n) is not None]
    if not is_once and given:
        raise InvalidRequestError("options exclude each other", options=["once=false", *given])
    if group_by and (others := [name for name in once_by if name not in group_by]):
        problem = "a group has one token: onceBy must be of columns of groupBy"
        raise InvalidRequestError(problem, columns=others)
    conditions = Conditions.parse(options, schema)
    mapping = TableMapping.parse(
        options, schema, conditions.sources, [*once_by, *group_by], is_written=True
    )
    conditions.check(mapping)
    retention_ms = options.whole("onceRetentionMs", None if once_by else retention_ms)
    return RequestBuilder(
        mapping,
        conditions,
        options.choice("nulls", ("leave", "delete"), "leave") == "delete",
        is_once,
        Naming.parse("onceBy", once_by, schema) if once_by else None,
        Naming.parse("groupBy", group_by, schema) if group_by else None,
        name_scope((options.text("jobId") or "").encode(), mapping.table),
        retention_ms if is_once else None,
        options.flag("validate") or None,
    )


def _describe_value(value: pa.Scalar) -> Any:
    try:
        found = value.as_py()
    except (OverflowError, ValueError):  # a date or time that Arrow has and Python lacks
        if pa.types.is_nested(value.type):
            return list_plain_values(pa.array([value], value.type))[0]
        return str(value.cast(pa.string()))
    return escape(found) if isinstance(found, bytes) else found
