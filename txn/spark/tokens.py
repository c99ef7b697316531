"""The `once` tokens of rows, by which a task that runs again changes nothing.

With the option `once_by` a token is made of the table, of the job where it has a name, and of
columns: it names what happens, and no other row may have it. Without, it is made of the name of the
write, of the partition, and of all that the row is; of rows of a partition that are equal each has
a number. So it does not matter in which order a partition comes when its task runs again; only
which rows are in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark.sql.types import NumericType, StructType

from txn.errors import InvalidRequestError
from txn.request import MAX_TOKEN
from txn.spark.codecs import make_codec, name_codec
from txn.spark.codecs.base import Codec

DIGEST_BYTES = 16
MOST_NAME = MAX_TOKEN - 100
"""Bytes of the name of a job: a partition, a digest and a number follow it."""
MOST_READ = 100
"""Bytes that people see of a token that would be too long."""


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
            columns.append([_guard_value(name, value) for value in values])
        return [b"/".join(parts) for parts in zip(*columns, strict=True)]


class RowTokens:
    """The tokens of one task, made of what each row is: rows that are equal are told apart.

    way: what is made of a row that has these parts, such as where it is written: one job may do
    several things with one data frame. It keeps 8 bytes of each row's digest, which take about
    70 as Python has them.
    """

    def __init__(self, prefix: bytes, way: Collection[Any]) -> None:
        self._prefix = prefix
        self._way = blake2b(repr(way).encode(), digest_size=DIGEST_BYTES)
        self._seen: set[int] = set()
        self._again: Counter[int] = Counter()

    def name_row(self, parts: Collection[Any]) -> bytes:
        """Return the token of a row that is made of these parts."""
        digest = self._way.copy()
        digest.update(repr(parts).encode())
        short = int.from_bytes(digest.digest()[:8])
        token = b"%s/%s" % (self._prefix, digest.hexdigest().encode())
        if short not in self._seen:
            self._seen.add(short)
            return token
        self._again[short] += 1
        return b"%s/%d" % (token, self._again[short])


def name_job(job: bytes, table: bytes) -> bytes:
    """Return the name of all that a job writes to a table, or, where the job has none, of all that
    anybody does. No other job or table has it: only that of a job has a slash in front."""
    return b"/%s/%s" % (_guard(job), _guard(table)) if job else _guard(table)


def make_token(*names: bytes) -> bytes:
    """Return the token of names of which each is within the one before it, however long they are:
    that of a job, then that which the values of columns make. A long one has a digest instead,
    behind two slashes, with which no other token begins."""
    token = b"/".join(names)
    if len(token) <= MAX_TOKEN:
        return token
    digest = blake2b(token, digest_size=32).hexdigest().encode()
    return b"//%s/%s" % (digest, token[:MOST_READ])


def _choose_codec(name: str, schema: StructType) -> Codec:
    """Numbers as text: tokens are read by people."""
    kind = schema[name].dataType
    return make_codec(
        "text" if isinstance(kind, NumericType) else name_codec(kind, name), kind, name
    )


def _guard_value(column: str, value: bytes | None) -> bytes:
    if value is None:
        raise InvalidRequestError("a column that names a transaction is null", column=column)
    return _guard(value)


def _guard(name: bytes) -> bytes:
    """Return a name in which no slash is taken for its end."""
    return name.replace(b"\\", rb"\\").replace(b"/", rb"\/")
