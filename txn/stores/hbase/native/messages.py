"""The message classes of hbase.proto, which is parsed at import, and the cells behind an answer.

So there is no generated code, which would tie us to one version of protobuf. Cells follow an answer
in a block of bytes. Decoding the bytes here is cheaper for Python than messages, and saves the
servers a copy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from txn.errors import MaybeApplied
from txn.model import Cell, Key, new_tuple

PACKAGE = "txn.hbase"
CODEC = "org.apache.hadoop.hbase.codec.KeyValueCodec"

_MESSAGE = re.compile(r"message (\w+) \{([^}]*)\}")
_FIELD = re.compile(r"(optional|required|repeated) (\w+) (\w+) = (\d+);")
_KINDS = descriptor_pb2.FieldDescriptorProto


class Messages:
    def __init__(self, name: str, text: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(_describe(name, text).SerializeToString())
        for message in pool.FindFileByName(name).message_types_by_name.values():
            setattr(self, message.name, message_factory.GetMessageClass(message))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no such message: {name}")


def _describe(name: str, text: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=PACKAGE)
    for message_name, body in _MESSAGE.findall(text):
        message = file.message_type.add(name=message_name)
        for label, kind, field, number in _FIELD.findall(body):
            added = message.field.add(name=field, number=int(number))
            added.label = _KINDS.Label.Value("LABEL_" + label.upper())
            if "TYPE_" + kind.upper() in _KINDS.Type.keys():  # noqa: SIM118  (no mapping)
                added.type = _KINDS.Type.Value("TYPE_" + kind.upper())
            else:
                added.type = _KINDS.Type.Value("TYPE_MESSAGE")
                added.type_name = f".{PACKAGE}.{kind}"
    return file


PB = Messages("hbase.proto", files(__package__).joinpath("hbase.proto").read_text())


# A cell is: its length, the lengths of its key and value, the row with a two-byte length, the
# family with a one-byte length, the column, the timestamp, a byte for its kind, and the value.
_HEAD = struct.Struct(">IIIH")  # no length is negative, so each cell ends behind its begin
_TIMESTAMP = struct.Struct(">q")
_LENGTHS, _AFTER_COLUMN = 12, 9


class Cells:
    """The cells at the end of an answer; at: where they begin."""

    __slots__ = ("_at", "_block")

    def __init__(self, block: bytes, at: int = 0) -> None:
        self._block = block
        self._at = at

    def take(self, count: int, table: bytes) -> dict[Key, Cell]:
        """Take the next `count` cells; raise MaybeApplied if there are too few."""
        block, at = self._block, self._at
        found: dict[Key, Cell] = {}
        try:
            for _ in range(count):
                size, key_size, value_size, row_size = _HEAD.unpack_from(block, at)
                begin = at + _LENGTHS
                row_at = begin + 2
                family_at = row_at + row_size + 1
                column_at = family_at + block[family_at - 1]
                value_at = begin + key_size
                column_end = value_at - _AFTER_COLUMN
                (timestamp,) = _TIMESTAMP.unpack_from(block, column_end)
                at += 4 + size
                if value_at + value_size > at or at > len(block):
                    raise ValueError("lengths")
                row = block[row_at : family_at - 1]
                family, column = block[family_at:column_at], block[column_at:column_end]
                value = block[value_at : value_at + value_size]
                key = new_tuple(Key, (row, family, column, table))
                found[key] = new_tuple(Cell, (value, timestamp))
        except (ValueError, IndexError, struct.error) as error:
            raise MaybeApplied("cells are missing from the answer", asked=count) from error
        self._at = at
        return found

    def take_columns(
        self, counts: Sequence[int], columns: Sequence[tuple[bytes, bytes]]
    ) -> tuple[list[bytes], list[list[bytes | None]]]:
        """Take rows of so many cells each; return the rows, and the values of each column, None for
        an absent one. Raise MaybeApplied if there are too few cells."""
        block, at = self._block, self._at
        rows: list[bytes] = []
        values: list[list[bytes | None]] = [[None] * len(counts) for _ in columns]
        by_name = {
            b"%c%b%b" % (len(family), family, column): found
            for (family, column), found in zip(columns, values, strict=True)
        }
        unpack = _HEAD.unpack_from
        try:
            for number, count in enumerate(counts):
                for _ in range(count):
                    size, key_size, value_size, row_size = unpack(block, at)
                    name_at = at + _LENGTHS + 2 + row_size
                    value_at = at + _LENGTHS + key_size
                    at += 4 + size
                    value_end = value_at + value_size
                    if value_end > at or at > len(block):
                        raise ValueError("lengths")
                    name = block[name_at : value_at - _AFTER_COLUMN]
                    by_name[name][number] = block[value_at:value_end]
                rows.append(block[name_at - row_size : name_at])
        except (ValueError, LookupError, struct.error) as error:
            raise MaybeApplied("cells are missing from the answer", rows=len(counts)) from error
        self._at = at
        return rows, values
